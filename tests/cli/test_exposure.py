"""Warning of addresses that anyone on the network can use."""

from __future__ import annotations

import pytest

from timonel.cli.exposure import exposure


@pytest.mark.parametrize(
    ("host", "has_credentials", "has_tls", "expected"),
    [
        ("127.0.0.1", False, False, None),
        ("localhost", False, False, None),
        ("::1", False, False, None),
        ("unix:/run/timonel", False, False, None),
        ("0.0.0.0", False, True, "anyone who reaches 0.0.0.0"),
        ("10.1.2.3", True, False, "unencrypted: add --tls-cert"),
        ("::", True, True, None),
    ],
)
def test_open_addresses_are_named(host, has_credentials, has_tls, expected):
    risk = exposure(host, has_credentials=has_credentials, has_tls=has_tls)
    assert risk is None if expected is None else expected in risk

from __future__ import annotations

import logging

import pytest

from timonel.endpoints.control.faults import Faults
from timonel.errors import InputError


def test_an_error_that_lasts_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    faults = Faults("digits")
    for _ in range(3):
        with faults.of("status"):
            raise InputError("no space left")
        with faults.of("scale"):
            pass
        with faults.of("save"):
            raise InputError("no space left")
    assert [record.getMessage() for record in caplog.records] == ["digits: no space left"]
    assert faults.message == "no space left"
    for step in ("status", "save"):
        with faults.of(step):
            pass
    assert faults.message is None
    with caplog.at_level(logging.ERROR), faults.of("status"):
        raise InputError("no space left")
    assert len(caplog.records) == 2


def test_a_defect_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    faults = Faults("digits")
    for _ in range(2):
        with faults.of("scale"):
            raise ValueError("a bug")
    (record,) = caplog.records
    assert record.exc_info is not None
    assert faults.message == "internal error (scale): ValueError: a bug"

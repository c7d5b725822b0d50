"""Bodies of requests: their limits, and gzip of one or several members."""

from __future__ import annotations

import asyncio
import gzip
import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timonel.serving.asgi import BodyTooLargeError, Request, error_response
from timonel.serving.protocols.http import (
    _SLICE,
    body_of,
    unzip,
)
from timonel.serving.status import Code, StatusError


def read(parts, most=None, headers=(), *, is_whole=True):
    """Read a body of several parts; return it and the number of parts that were received."""
    received = []
    messages = [
        {"type": "http.request", "body": part, "more_body": number < len(parts) or not is_whole}
        for number, part in enumerate(parts, 1)
    ]
    messages.append({"type": "http.disconnect"})

    async def receive():
        received.append(messages[len(received)])
        return received[-1]

    return asyncio.run(body_of(Request({"headers": headers}, receive, "/", None), most)), received


@given(st.lists(st.binary(max_size=5), min_size=1, max_size=5), st.none() | st.integers(0, 20))
def test_a_body_within_its_limit_is_read(parts, most):
    whole = b"".join(parts)
    if most is None or len(whole) <= most:
        assert read(parts, most)[0] == whole
        return
    with pytest.raises(BodyTooLargeError) as caught:
        read(parts, most)
    response = error_response(caught.value)
    assert response.status == 413
    assert f"The request body is larger than {most} bytes. ".encode() in response.body


@pytest.mark.parametrize("length", [b"6", b"9" * 400])
def test_a_body_that_declares_too_much_is_not_read(length):
    async def receive():
        raise AssertionError("nothing was to be read")

    request = Request({"headers": [(b"content-length", length)]}, receive, "/", None)
    with pytest.raises(BodyTooLargeError):
        asyncio.run(body_of(request, 5))


def test_a_client_that_leaves_has_no_body():
    with pytest.raises(StatusError) as caught:
        read([b"1"], is_whole=False)
    assert caught.value.code is Code.CANCELLED


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=4))
def test_members_are_joined(members):
    whole = b"".join(members)
    packed = b"".join(map(gzip.compress, members))
    assert unzip(packed) == unzip(packed, len(whole)) == whole
    if whole:
        with pytest.raises(BodyTooLargeError, match=r"bytes when unpacked\."):
            unzip(packed, len(whole) - 1)


@pytest.mark.parametrize("most", [None, 100])
@pytest.mark.parametrize(
    "change", [lambda body: body[:-1], lambda body: body + b"x", lambda _: b"x"]
)
def test_a_damaged_body_is_empty(change, most):
    assert unzip(change(gzip.compress(b"one") + gzip.compress(b"two")), most) == b""


@pytest.mark.parametrize(("members", "expected"), [(10_000, b"x"), (10_001, b"")])
def test_the_number_of_members_is_limited(members, expected):
    assert unzip(gzip.compress(b"") * (members - 1) + gzip.compress(b"x")) == expected


def test_the_time_of_empty_members_does_not_grow_with_the_body():
    packed = gzip.compress(b"") * 1_600_000
    began = time.process_time()
    assert unzip(packed) == b""
    assert time.process_time() - began < 5  # 32 MB took minutes


def test_a_bomb_takes_no_more_memory_than_the_limit():
    packed = gzip.compress(bytes(100 * _SLICE))
    tracemalloc.start()
    try:
        with pytest.raises(BodyTooLargeError):
            unzip(packed, 4 * _SLICE)
        assert tracemalloc.get_traced_memory()[1] < 8 * _SLICE
    finally:
        tracemalloc.stop()

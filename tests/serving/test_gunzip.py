"""Gzip bodies of one or several members."""

from __future__ import annotations

import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timonel.serving.gunzip import _SLICE, Gunzip
from timonel.serving.protocols.tfs_rest.http import unzip


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=4), st.integers(1, 30))
def test_members_are_joined_however_the_body_is_cut(members, size):
    packed = b"".join(map(gzip.compress, members))
    gunzip = Gunzip()
    cuts = [packed[start : start + size] for start in range(0, len(packed), size)]
    found = b"".join(piece for cut in cuts for piece in gunzip.feed(cut))
    assert gunzip.is_complete
    assert found == unzip(packed) == b"".join(members)


@pytest.mark.parametrize(
    "change", [lambda body: body[:-1], lambda body: body + b"x", lambda _: b"x"]
)
def test_a_damaged_body_is_empty(change):
    body = change(gzip.compress(b"one") + gzip.compress(b"two"))
    gunzip = Gunzip()
    list(gunzip.feed(body))
    assert not gunzip.is_complete
    assert unzip(body) == b""


def test_a_bomb_is_unpacked_in_slices():
    packed = gzip.compress(bytes(10 * _SLICE))
    assert max(map(len, Gunzip().feed(packed))) <= _SLICE

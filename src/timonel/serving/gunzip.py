"""Decompress gzip bodies in bounded slices, safe against zip bombs. Pure."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

_GZIP = 31
"""Window bits of zlib for a gzip header and trailer."""
_SLICE = 1 << 18


class Gunzip:
    """Stream of one or several gzip members.

    A corrupt stream counts as empty, as in TensorFlow Serving.
    """

    def __init__(self) -> None:
        self._member = zlib.decompressobj(wbits=_GZIP)
        self.is_damaged = False

    @property
    def is_complete(self) -> bool:
        """Whether the stream has ended without an error."""
        return self._member.eof and not self.is_damaged

    def feed(self, packed: bytes) -> Iterator[bytes]:
        """Decompress ``packed`` and yield the data in slices."""
        while packed and not self.is_damaged:
            if self._member.eof:
                self._member = zlib.decompressobj(wbits=_GZIP)
            try:
                yield self._member.decompress(packed, _SLICE)
            except zlib.error:
                self.is_damaged = True
                return
            packed = self._member.unconsumed_tail or self._member.unused_data

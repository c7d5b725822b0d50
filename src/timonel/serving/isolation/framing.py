"""Split messages into packets: several per packet, large ones by reference. Pure.

    packet   frame, frame, ...
    frame    kind, segment, number, offset, length (32 bytes) | content and padding, if inline

If ``segment`` is `HERE`, the content follows; otherwise it is in shared memory at ``offset``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from timonel.serving.isolation.messages import Bytes, ProtocolError

HERE = -1
INLINE_BYTES = 16 << 10
"""Maximum size of contents sent through the socket.

For small arrays, one more copy costs less than a block of shared memory that must be given back.
"""
PACKET_BYTES = 64 << 10
_FRAME = struct.Struct("<IiQQQ")
_PADDING = 32


class Kind(IntEnum):
    """Kind of a frame."""

    SEGMENT = 1  # carries a descriptor of shared memory: number and size
    RETIRE = 2  # a segment is no longer used
    RELEASE = 3  # blocks of the receiver's memory are free: pairs of segment and offset
    REQUEST = 4  # [signature, outputs, deadline], inputs
    ANSWER = 5  # [seconds of compute], outputs
    ERROR = 6  # [code, text, seconds of compute]
    LOADED = 7  # [signatures, platform], defaults
    CANCEL = 8  # the response to that request is no longer needed
    CLOSE = 9  # unload, and end
    BATCH = 10  # [values of a BatchObservation]


class Frame(NamedTuple):
    """A received frame; a tuple for speed, as each request needs several.

    Args:
        kind: The frame's kind.
        number: The request or segment it refers to.
        segment: The segment that holds the content, or `HERE`.
        offset: The content's offset in the segment; or a size.
        length: Bytes of content.
        content: The content, if inline.
    """

    kind: Kind
    number: int
    segment: int
    offset: int
    length: int
    content: Bytes


def inline(kind: Kind, number: int, content: bytes = b"", *, offset: int = 0) -> bytes:
    """Return a frame with inline content."""
    head = _FRAME.pack(kind, HERE, number, offset, len(content))
    return b"".join((head, content, bytes(-len(content) % _PADDING)))


def by_reference(kind: Kind, number: int, segment: int, offset: int, length: int) -> bytes:
    """Return a frame whose content is in shared memory."""
    return _FRAME.pack(kind, segment, number, offset, length)


def read_frames(packet: bytes) -> Iterator[Frame]:
    """Yield the frames of a packet.

    Raises:
        ProtocolError: The packet is invalid.
    """
    whole = np.frombuffer(packet, np.uint8)
    at = 0
    while at < len(packet):
        try:
            kind, segment, number, offset, length = _FRAME.unpack_from(packet, at)
            at += _FRAME.size
            here = length if segment == HERE else 0
            content = whole[at : at + here]
            if len(content) != here:
                raise ProtocolError("expected a whole frame, got a part of one")
            yield Frame(Kind(kind), number, segment, offset, length, content)
        except (struct.error, ValueError) as error:
            raise ProtocolError(f"expected a frame, got {error}") from error
        at += here + -here % _PADDING


def release(places: Iterable[tuple[int, int]]) -> bytes:
    """Return a frame that gives blocks back."""
    return inline(Kind.RELEASE, 0, np.array(list(places), np.uint64).tobytes())


def released(frame: Frame) -> list[tuple[int, int]]:
    """Return the blocks that a frame gives back.

    Raises:
        ProtocolError: The frame is damaged.
    """
    if frame.length % 16:
        raise ProtocolError("expected pairs of numbers")
    pairs: list[list[int]] = frame.content.view(np.uint64).reshape(-1, 2).tolist()
    return [(number, offset) for number, offset in pairs]

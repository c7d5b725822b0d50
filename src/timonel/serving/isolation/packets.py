"""Send and receive packets of messages: several per packet, large ones by reference.

    packet   frame, frame, ...
    frame    kind, segment, number, offset, length (32 bytes) | content and padding, if inline

If ``segment`` is `HERE`, the content follows; otherwise it is in shared memory at ``offset``.
"""

from __future__ import annotations

import array
import os
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from timonel.serving.isolation.messages import Bytes, ProtocolError, unpack
from timonel.serving.isolation.shared_memory import Arena, Hold, Release, SharedSegment
from timonel.serving.signature import Array

HERE = -1
INLINE_BYTES = 16 << 10
"""Maximum size of contents sent through the socket.

For small arrays, one more copy costs less than a block of shared memory that must be released.
"""
PACKET_BYTES = 64 << 10
_FRAME = struct.Struct("<IiQQQ")
_PADDING = 32
_RELEASED_AT_ONCE = 512
_DESCRIPTOR_BYTES = socket.CMSG_SPACE(array.array("i").itemsize)

Packet = tuple[bytes, int | None]
"""Content, and a descriptor to send with it."""


class FrameKind(IntEnum):
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
    QUEUED = 11  # asks for, and tells, the number of waiting requests


_MEMORY_KINDS = frozenset({FrameKind.SEGMENT, FrameKind.RETIRE, FrameKind.RELEASE})


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

    kind: FrameKind
    number: int
    segment: int
    offset: int
    length: int
    content: Bytes


def inline(kind: FrameKind, number: int, content: bytes = b"", *, offset: int = 0) -> bytes:
    """Return a frame with inline content."""
    head = _FRAME.pack(kind, HERE, number, offset, len(content))
    return b"".join((head, content, bytes(-len(content) % _PADDING)))


def by_reference(kind: FrameKind, number: int, segment: int, offset: int, length: int) -> bytes:
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
                raise ProtocolError("truncated frame")
            yield Frame(FrameKind(kind), number, segment, offset, length, content)
        except (struct.error, ValueError) as error:
            raise ProtocolError(f"invalid frame: {error}") from error
        at += here + -here % _PADDING


def release(places: Iterable[tuple[int, int]]) -> bytes:
    """Return a frame that releases blocks."""
    return inline(FrameKind.RELEASE, 0, np.array(list(places), np.uint64).tobytes())


def released(frame: Frame) -> list[tuple[int, int]]:
    """Return the blocks that a frame releases.

    Raises:
        ProtocolError: The frame is damaged.
    """
    if frame.length % 16:
        raise ProtocolError("invalid list of released blocks")
    pairs: list[list[int]] = frame.content.view(np.uint64).reshape(-1, 2).tolist()
    return [(number, offset) for number, offset in pairs]


class Sender:
    """Queue of frames, some with a descriptor, and of blocks to release. Thread-safe.

    Any thread adds frames; the first one to flush sends all that are queued, in as few packets as
    possible.

    Args:
        connection: A non-blocking socket; not owned.
        when_blocked: Called when the socket's buffer is full; call `unblock` once it is writable.
    """

    def __init__(self, connection: socket.socket, when_blocked: Callable[[], None]) -> None:
        self._socket = connection
        self._when_blocked = when_blocked
        self._frames: deque[Packet] = deque()
        self._unused: deque[tuple[int, int]] = deque()
        self._unsent: Packet | None = None
        self._sending = threading.Lock()
        self._broken = False
        self.is_blocked = False

    def add(self, frame: bytes, descriptor: int | None = None) -> None:
        """Queue a frame for `flush`; its descriptor is closed after sending."""
        self._frames.append((frame, descriptor))

    def add_unused(self, number: int, offset: int) -> None:
        """Queue a block of the other side's memory for release."""
        self._unused.append((number, offset))

    def flush(self) -> None:
        """Send queued frames, unless another thread is sending. Also called by destructors."""
        while self._has_work and not self.is_blocked:
            if not self._sending.acquire(blocking=False):
                return  # the holder checks again after releasing the lock
            try:
                self._send_all()
            finally:
                self._sending.release()

    def unblock(self) -> None:
        """Resume sending: the socket is writable."""
        self.is_blocked = False
        self.flush()

    def close(self) -> None:
        """Drop all unsent frames."""
        with self._sending:
            self._broken = True
            self._send_all()

    @property
    def waiting(self) -> int:
        """Number of queued frames, without a packet that blocked."""
        return len(self._frames)

    @property
    def _has_work(self) -> bool:
        return bool(self._unsent or self._frames or self._unused)

    def _send_all(self) -> None:
        while (packet := self._unsent or self._next_packet()) is not None:
            content, descriptor = packet
            try:
                if self._broken:
                    pass  # only descriptors are left to close
                elif descriptor is None:
                    self._socket.send(content)
                else:
                    socket.send_fds(self._socket, [content], [descriptor])
            except BlockingIOError:
                self._unsent = packet
                self.is_blocked = True
                self._when_blocked()
                return
            except OSError:
                # The other side is gone; its earlier messages can still be received.
                self._broken = True
            self._unsent = None
            if descriptor is not None:
                os.close(descriptor)

    def _next_packet(self) -> Packet | None:
        frames: list[bytes] = []
        size = 0
        while self._frames:
            frame, descriptor = self._frames[0]
            if frames and (descriptor is not None or size + len(frame) > PACKET_BYTES):
                break
            self._frames.popleft()
            if descriptor is not None:
                return frame, descriptor
            frames.append(frame)
            size += len(frame)
        if self._unused and size < PACKET_BYTES // 2:
            count = min(len(self._unused), _RELEASED_AT_ONCE)
            frames.append(release([self._unused.popleft() for _ in range(count)]))
        return (b"".join(frames), None) if frames else None


class Message(NamedTuple):
    """A received message; a tuple for speed, as each request needs several.

    Args:
        kind: The message's kind.
        number: The request's number.
        fields: The message's values.
        arrays: The message's arrays; those in shared memory stay there while in use.
    """

    kind: FrameKind
    number: int
    fields: list[Any]
    arrays: dict[str, Array]


class Receiver:
    """Receiver of messages, which keeps the other side's memory mapped. For one thread.

    Args:
        connection: A non-blocking socket; not owned.
        release: Called for each block of the other side's memory that is no longer used.
        arena: This side's memory; the other side releases its blocks.
    """

    def __init__(self, connection: socket.socket, release: Release, arena: Arena) -> None:
        self._socket = connection
        self._release = release
        self._arena = arena
        # Reused: the kernel would have to provide pages for a new buffer with each packet.
        self._buffer = memoryview(bytearray(PACKET_BYTES * 2))
        self.segments: dict[int, SharedSegment] = {}

    def receive(self, handle: Callable[[Message], None]) -> bool:
        """Read a packet, and handle each message in it.

        Returns:
            False if the other side has ended the connection.

        Raises:
            ProtocolError: The packet is invalid.
        """
        try:
            size, ancillary, _, _ = self._socket.recvmsg_into([self._buffer], _DESCRIPTOR_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            return False
        packet = bytes(self._buffer[:size])
        descriptors = _descriptors(ancillary) if ancillary else []
        try:
            for frame in read_frames(packet):
                if frame.kind in _MEMORY_KINDS:
                    self._update_memory(frame, descriptors)
                else:
                    handle(self._message(frame))
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        return bool(packet)

    def _update_memory(self, frame: Frame, descriptors: Sequence[int]) -> None:
        if frame.kind is FrameKind.RELEASE:
            for number, offset in released(frame):
                self._arena.release(number, offset)
        elif frame.kind is FrameKind.RETIRE:
            self.segments.pop(frame.number, None)
        elif descriptors:
            try:
                self.segments[frame.number] = SharedSegment(descriptors[0], frame.offset)
            except (OSError, ValueError, OverflowError) as error:
                raise ProtocolError(f"invalid shared memory: {error}") from error

    def _message(self, frame: Frame) -> Message:
        content = frame.content
        if frame.segment != HERE:
            content = self._find(frame.segment, frame.offset, frame.length)
        fields, arrays = unpack(content, self._find)
        return Message(frame.kind, frame.number, fields, arrays)

    def _find(self, number: int, offset: int, length: int) -> Bytes:
        segment = self.segments.get(number)
        if segment is None:
            raise ProtocolError(f"unknown segment {number}")
        try:
            return Hold(segment, offset, length, self._release, number).array()
        except ValueError as error:
            raise ProtocolError(str(error)) from error


def _descriptors(ancillary: Sequence[tuple[int, int, bytes]]) -> list[int]:
    found = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            found.frombytes(data[: len(data) - len(data) % found.itemsize])
    return found.tolist()

"""Receive and parse messages between the server and a compute process.

Used by the receiving thread only.
"""

from __future__ import annotations

import array
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from timonel.serving.isolation.arena import Arena
from timonel.serving.isolation.framing import HERE, PACKET_BYTES, Frame, Kind, read_frames, released
from timonel.serving.isolation.messages import Bytes, ProtocolError, unpack
from timonel.serving.isolation.shared_memory import Hold, Owner, SharedSegment
from timonel.serving.signature import Array

_DESCRIPTOR_BYTES = socket.CMSG_SPACE(array.array("i").itemsize)
_LINKED = frozenset({Kind.SEGMENT, Kind.RETIRE, Kind.RELEASE})


class Message(NamedTuple):
    """A received message; a tuple for speed, as each request needs several.

    Args:
        kind: The message's kind.
        number: The request's number.
        fields: The message's values.
        arrays: The message's arrays; those in shared memory stay there while in use.
    """

    kind: Kind
    number: int
    fields: list[Any]
    arrays: dict[str, Array]


class Receiver:
    """Receiver of messages, which keeps the other side's memory mapped.

    Args:
        connection: A non-blocking socket; not owned.
        owner: Told which blocks of the other side's memory are no longer used.
        arena: This side's memory; the other side gives its blocks back.
    """

    def __init__(self, connection: socket.socket, owner: Owner, arena: Arena) -> None:
        self._socket = connection
        self._owner = owner
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
                if frame.kind in _LINKED:
                    self._note(frame, descriptors)
                else:
                    handle(self._message(frame))
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        return bool(packet)

    def _note(self, frame: Frame, descriptors: Sequence[int]) -> None:
        if frame.kind is Kind.RELEASE:
            for number, offset in released(frame):
                self._arena.give_back(number, offset)
        elif frame.kind is Kind.RETIRE:
            self.segments.pop(frame.number, None)
        elif descriptors:
            try:
                self.segments[frame.number] = SharedSegment(descriptors[0], frame.offset)
            except (OSError, ValueError, OverflowError) as error:
                raise ProtocolError(f"expected shared memory, got {error}") from error

    def _message(self, frame: Frame) -> Message:
        content = frame.content
        if frame.segment != HERE:
            content = self._find(frame.segment, frame.offset, frame.length)
        fields, arrays = unpack(content, self._find)
        return Message(frame.kind, frame.number, fields, arrays)

    def _find(self, number: int, offset: int, length: int) -> Bytes:
        segment = self.segments.get(number)
        if segment is None:
            raise ProtocolError(f"expected a segment that is known, got {number}")
        try:
            return Hold(segment, offset, length, self._owner, number).array()
        except ValueError as error:
            raise ProtocolError(str(error)) from error


def _descriptors(ancillary: Sequence[tuple[int, int, bytes]]) -> list[int]:
    found = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            found.frombytes(data[: len(data) - len(data) % found.itemsize])
    return found.tolist()

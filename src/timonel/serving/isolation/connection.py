"""One end of the connection between the server and a compute process.

Any thread posts messages; one thread, in `serve`, receives. Nothing here waits for the other side,
so a process that hangs blocks nobody; what the socket does not accept is sent later.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from timonel.serving.isolation.messages import ArrayLocation, pack
from timonel.serving.isolation.packets import (
    INLINE_BYTES,
    FrameKind,
    Message,
    Receiver,
    Sender,
    by_reference,
    inline,
)
from timonel.serving.isolation.shared_memory import Arena, hold_of
from timonel.serving.signature import NUMPY_TYPES, Array
from timonel.serving.turns import TurnBatching, at_end_of_turn

MAX_QUEUED = 100
"""Queued messages that are sent without waiting for the iteration to end.

The other side can then start to work on them.
"""


class Connection:
    """Connection that sends from any thread and receives in one.

    Owns the socket and the memory that this side writes.

    Args:
        connection: One end of a pair of sequential-packet sockets.
        limit_bytes: Shared memory that this side may use.
    """

    def __init__(self, connection: socket.socket, *, limit_bytes: int) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._arena = Arena(self._announce, self._retire, limit_bytes=limit_bytes)
        self._receiver = Receiver(connection, self._release, self._arena)
        self._sender = Sender(connection, self.wake)
        self._turn_batching = TurnBatching()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._waking = threading.RLock()
        self._flush_requested = False
        self._thread_id = 0
        self._over = False
        self._closed = False

    @property
    def arena(self) -> Arena:
        """The memory that this side writes."""
        return self._arena

    def allocate(self, shape: Sequence[int], dtype: str, timeout_s: float) -> Array:
        """Return an uninitialized array that can be sent without a copy.

        Args:
            shape: The array's shape.
            dtype: A key of `NUMPY_TYPES` other than ``DT_STRING``.
            timeout_s: Seconds to wait for memory.

        Raises:
            StatusError: No memory became free in time.
        """
        block = self._arena.allocate(_bytes_of(shape, dtype), timeout_s)
        return block.array().view(NUMPY_TYPES[dtype]).reshape(shape)

    def post(
        self,
        kind: FrameKind,
        number: int,
        fields: Sequence[Any] = (),
        arrays: Mapping[str, Array] | None = None,
        timeout_s: float = 60.0,
        *,
        later: bool = False,
        turn: bool = False,
    ) -> None:
        """Queue a message, and send it unless deferred.

        Arrays outside shared memory are copied before this returns.

        Args:
            kind: The message's kind.
            number: The request's number.
            fields: JSON-compatible values.
            arrays: Arrays by name.
            timeout_s: Seconds to wait for shared memory, if the message is large.
            later: More messages follow from this thread: leave sending to the receiving thread, so
                that several go in one packet.
            turn: More messages may follow in this event-loop iteration, if a loop runs in this
                thread: send them together at its end, or earlier if they are many.

        Raises:
            StatusError: An array's type is not a tensor's, or no memory became free in time.
        """
        places = dict(self._places(arrays)) if arrays else None
        content = pack(fields, arrays, places)
        if content.size <= INLINE_BYTES:
            frame = inline(kind, number, content.as_bytes())
        else:
            hold = self._arena.allocate(content.size, timeout_s)
            content.write_to(hold.array())
            self._arena.share(hold)
            frame = by_reference(kind, number, hold.number, hold.offset, content.size)
        self._sender.add(frame)
        if turn and self._may_wait() and at_end_of_turn(self._end_turn):
            return
        if not later:
            self.flush()
        elif not self._flush_requested:
            self._flush_requested = True
            if threading.get_ident() != self._thread_id:
                self.wake()

    def _may_wait(self) -> bool:
        return self._sender.waiting < MAX_QUEUED and self._turn_batching.pays()

    def _end_turn(self) -> None:
        self._turn_batching.ended(self._sender.waiting)
        self.flush()

    def flush(self) -> None:
        """Send queued messages, unless another thread is sending."""
        self._sender.flush()

    def serve(
        self,
        handle: Callable[[Message], None],
        watch: Callable[[], float | None] = lambda: None,
    ) -> None:
        """Receive until either side ends the connection.

        Args:
            handle: Called with each message.
            watch: Called before each wait; returns the maximum wait in seconds, or None for no
                limit.

        Raises:
            ProtocolError: The other side has sent invalid data.
        """
        poller = select.poll()
        poller.register(self._wake, select.POLLIN)
        descriptor = self._socket.fileno()
        poller.register(descriptor, select.POLLIN)
        writing = False
        self._thread_id = threading.get_ident()
        while not self._over:
            if self._flush_requested:
                self._flush_requested = False
                self.flush()
            if writing != self._sender.is_blocked:
                writing = not writing
                mask = select.POLLIN | (select.POLLOUT if writing else 0)
                poller.modify(descriptor, mask)
            wait_s = watch()
            events = dict(poller.poll(None if wait_s is None else max(1, round(wait_s * 1000))))
            if self._wake in events:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._wake)
            event = events.get(descriptor, 0)
            if event & select.POLLOUT:
                self._sender.unblock()
            if event & ~select.POLLOUT and not self._receiver.receive(handle):
                return

    def wake(self) -> None:
        """Wake up `serve`, so that it calls ``watch``."""
        # Not after `close`: the descriptor may belong to another file by then.
        with self._waking:
            if not self._closed:
                os.eventfd_write(self._wake, 1)

    def stop(self) -> None:
        """Make `serve` return on this side; messages can still be sent."""
        self._over = True

    def shut(self) -> None:
        """End the connection; `serve` returns on both sides."""
        self._over = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._arena.close()

    def close(self) -> None:
        """Release all resources after `serve` has returned. Arrays in use stay valid."""
        self.shut()
        self._sender.close()
        self._socket.close()
        with self._waking:
            if not self._closed:
                os.close(self._wake)
            self._closed = True
        self._receiver.segments.clear()

    def _release(self, number: int, offset: int) -> None:
        if not self._over:
            self._sender.add_unused(number, offset)
            self.flush()

    def _places(self, arrays: Mapping[str, Array]) -> Iterator[tuple[str, ArrayLocation]]:
        """Share the arrays in this side's shared memory; yield their places."""
        for name, each in arrays.items():
            hold = None if each.nbytes <= INLINE_BYTES else hold_of(each)
            if hold is None or not self._arena.owns(hold) or not each.flags.c_contiguous:
                continue
            # A block is released by its first byte, so the array must start there.
            if each.ctypes.data == hold.segment.address + hold.offset:
                self._arena.share(hold)
                yield name, ArrayLocation(hold.number, hold.offset)

    def _announce(self, number: int, descriptor: int, size: int) -> None:
        self._sender.add(inline(FrameKind.SEGMENT, number, offset=size), descriptor)

    def _retire(self, number: int) -> None:
        self._sender.add(inline(FrameKind.RETIRE, number))
        self.flush()


def is_small(shape: Sequence[int], dtype: str) -> bool:
    """Return whether an array is small enough to send through the socket.

    Shared memory would cost more for these.
    """
    return _bytes_of(shape, dtype) <= INLINE_BYTES


def _bytes_of(shape: Sequence[int], dtype: str) -> int:
    return math.prod(shape) * NUMPY_TYPES[dtype].itemsize

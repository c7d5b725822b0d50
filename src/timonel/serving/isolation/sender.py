"""Queue messages and send them through a non-blocking socket.

Any thread adds messages; the first one to flush sends all that are queued, in as few packets as
possible.
"""

from __future__ import annotations

import os
import socket
import threading
from collections import deque
from collections.abc import Callable

from timonel.serving.isolation.framing import PACKET_BYTES, release

_RELEASED_AT_ONCE = 512

Packet = tuple[bytes, int | None]


class Sender:
    """Queue of frames, some with a descriptor, and of blocks to release. Thread-safe.

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

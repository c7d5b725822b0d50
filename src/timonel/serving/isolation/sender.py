"""What waits to be sent through a socket that is never waited for.

Any thread adds; whichever gets there first sends all that have piled up, in as few packets as they
fit into.
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
    """Frames, some with a descriptor, and blocks to give back. Thread-safe.

    Args:
        connection: A socket that does not block; owned by somebody else.
        when_blocked: Called when the socket takes no more; `unblock` is to be called once it does.
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
        """Add a frame to what `flush` sends; a descriptor is closed when it has been sent."""
        self._frames.append((frame, descriptor))

    def add_unused(self, number: int, offset: int) -> None:
        """Add a block to give back to what `flush` sends."""
        self._unused.append((number, offset))

    def flush(self) -> None:
        """Send what has piled up, unless another thread is at it. Also called by destructors."""
        while self._has_work and not self.is_blocked:
            if not self._sending.acquire(blocking=False):
                return  # whoever has it looks once more after having let go
            try:
                self._send_all()
            finally:
                self._sending.release()

    def unblock(self) -> None:
        """Go on: the socket takes more."""
        self.is_blocked = False
        self.flush()

    def close(self) -> None:
        """Drop all that was not sent."""
        with self._sending:
            self._broken = True
            self._send_all()

    @property
    def waiting(self) -> int:
        """How many frames were not even tried to be sent."""
        return len(self._frames)

    @property
    def _has_work(self) -> bool:
        return bool(self._unsent or self._frames or self._unused)

    def _send_all(self) -> None:
        while (packet := self._unsent or self._next_packet()) is not None:
            content, descriptor = packet
            try:
                if self._broken:
                    pass  # all that is left to do is to close descriptors
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
                # The other side is gone; what it has said before can still be received.
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

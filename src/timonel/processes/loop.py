"""Event loop of single-threaded processes: messages, descriptors, signals and a timeout."""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
from collections.abc import Callable, Iterable, Mapping
from typing import Any

_CHUNK_BYTES = 1 << 16


class Channel:
    """Stream socket that carries one JSON object per line.

    Never blocks: data that the peer does not accept yet is buffered until `flush`. Owns its socket.
    For one thread.

    Attributes:
        is_open: Whether the peer is there.
        limit: Maximum number of bytes that `receive` reads; the rest waits for its next call. None:
            all that has arrived.
    """

    limit: int | None = None

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._received = b""
        self._unsent = b""
        self.is_open = True

    def fileno(self) -> int:
        """Return the socket's descriptor, for a selector."""
        return self._socket.fileno()

    @property
    def wants_write(self) -> bool:
        """Whether data is waiting to be sent."""
        return self.is_open and bool(self._unsent)

    def send(self, message: Mapping[str, Any]) -> None:
        """Send or buffer a message; drop it if the peer is gone."""
        self._unsent += json.dumps(message, separators=(",", ":")).encode() + b"\n"
        self.flush()

    def flush(self) -> None:
        """Send as much buffered data as the peer accepts."""
        try:
            while self._unsent:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except BlockingIOError:
            return
        except OSError:
            # `receive` reports the loss too, after the data that arrived before it.
            self._unsent = b""

    def receive(self) -> list[dict[str, Any]]:
        """Return the received messages; `is_open` is false once the peer is gone."""
        try:
            while chunk := self._socket.recv(self.limit or _CHUNK_BYTES):
                self._received += chunk
                if self.limit is not None:
                    break
            else:
                self.is_open = False
        except BlockingIOError:
            pass
        except OSError:
            self.is_open = False
        *lines, self._received = self._received.split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        """Close the socket."""
        self.is_open = False
        self._socket.close()


class Loop:
    """Waits for descriptors and signals and calls the registered callbacks.

    Signals arrive through a wake-up descriptor, so that no handler interrupts other code. One per
    process, in its main thread.
    """

    def __init__(self, signals: Iterable[int]) -> None:
        self._selector = selectors.DefaultSelector()
        self._channels: dict[Channel, Callable[[], None]] = {}
        self._pending: list[int] = []
        self._reader, self._writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._selector.register(self._reader, selectors.EVENT_READ, self._drain_signals)
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        for number in signals:
            # The wake-up descriptor receives the signal's number.
            signal.signal(number, lambda *_: None)

    def watch(self, descriptor: int, callback: Callable[[], None]) -> None:
        """Call ``callback`` whenever ``descriptor`` is readable."""
        self._selector.register(descriptor, selectors.EVENT_READ, callback)

    def watch_channel(self, channel: Channel, callback: Callable[[], None]) -> None:
        """Call ``callback`` whenever ``channel`` is readable, and flush it when writable."""
        self._channels[channel] = callback
        self._selector.register(channel, selectors.EVENT_READ, callback)

    def forget(self, watched: int | Channel) -> None:
        """Stop watching a descriptor or a channel."""
        if isinstance(watched, Channel):
            self._channels.pop(watched, None)
        self._selector.unregister(watched)

    def wait(self, timeout_s: float | None) -> list[int]:
        """Wait for events, call the callbacks, and return the received signals."""
        for channel, callback in self._channels.items():
            events = selectors.EVENT_READ
            if channel.wants_write:
                events |= selectors.EVENT_WRITE
            self._selector.modify(channel, events, callback)
        for key, events in self._selector.select(timeout_s):
            if key.fileobj in self._channels and events & selectors.EVENT_WRITE:
                key.fileobj.flush()
            # An earlier callback of this round may have unregistered it.
            if events & selectors.EVENT_READ and key.fd in self._selector.get_map():
                key.data()
        signals, self._pending = self._pending, []
        return signals

    def close(self) -> None:
        """Close the loop's own descriptors, such as in a forked child."""
        signal.set_wakeup_fd(-1)
        self._selector.close()
        os.close(self._reader)
        os.close(self._writer)

    def _drain_signals(self) -> None:
        self._pending.extend(os.read(self._reader, 4096))

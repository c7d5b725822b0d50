"""Event loop for single-threaded processes: descriptors, signals and a timeout."""

from __future__ import annotations

import os
import selectors
import signal
from collections.abc import Callable, Iterable

from timonel.engines.local.channel import Channel


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
            signal.signal(number, _ignore)

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

    def _drain_signals(self) -> None:
        self._pending.extend(os.read(self._reader, 4096))


def _ignore(_number: int, _frame: object) -> None:
    """Do nothing: the wake-up descriptor receives the signal's number."""

"""Waiting for a server's end. Imports next to nothing, as whoever waits may do so for months."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Protocol


class Process(Protocol):
    """A child of this process. Signals are for it alone, also after its end."""

    def wait(self) -> object:
        """Block until it has ended."""

    def send_signal(self, number: int, /) -> None:
        """Send it a signal, if it has not ended."""

    def kill(self) -> None:
        """Kill it, if it has not ended."""


class Child:
    """A child that was started before this program replaced the one that did so.

    Args:
        pid: Its number.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def wait(self) -> None:
        """Block until it has ended."""
        # It is not reaped: until this process ends too, the number is no other process's.
        os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOWAIT)

    def send_signal(self, number: int, /) -> None:
        """Send it a signal."""
        os.kill(self._pid, number)

    def kill(self) -> None:
        """Kill it."""
        self.send_signal(signal.SIGKILL)


def outlast(process: Process, meanwhile: Callable[[], object] = lambda: None) -> None:
    """Block until a server has ended; SIGTERM and Ctrl-C are passed on to it.

    The first Ctrl-C lets it answer what is under way, a second one kills it.

    Args:
        process: The server.
        meanwhile: Called first, when signals are passed on already.
    """
    with _passed_on(signal.SIGTERM, process.send_signal):
        try:
            meanwhile()
            process.wait()
        except KeyboardInterrupt:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait()
            except KeyboardInterrupt:
                process.kill()
                process.wait()


@contextlib.contextmanager
def _passed_on(number: signal.Signals, send: Callable[[int], None]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, lambda received, _: send(received))
    try:
        yield
    finally:
        signal.signal(number, before)

"""What a worker has borrowed from the leader: versions, and connections to their processes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from timonel.serving.compute.model import ProcessModel
from timonel.serving.compute.process import ComputeProcess
from timonel.serving.servables import Servable
from timonel.serving.status import Code, StatusError
from timonel.serving.workers.catalogue import SharedCatalogue
from timonel.serving.workers.channel import Channel

_ENDS_S = 2.0


class Lending:
    """Holds the versions that one worker uses, so that none is unloaded before it is let go.

    Args:
        catalogue: Where versions are.
        channel: Returns the way to the worker.
    """

    def __init__(self, catalogue: SharedCatalogue, channel: Callable[[], Channel]) -> None:
        self._catalogue = catalogue
        self._channel = channel
        self._lock = threading.Lock()
        self._held: dict[int, Servable] = {}
        self._processes: dict[int, ComputeProcess] = {}
        self._ended = False

    def join(self, number: int, key: int) -> Future[Any]:
        """Give the worker a connection to a version's process, and return its pid and restarts.

        Raises:
            StatusError: The version serves no more.
        """
        return in_thread(lambda: self._join(number, key))

    def cause(self, pid: int) -> Future[Any]:
        """Return how a process ended; none if it has not."""
        process = self._processes.get(pid)
        return in_thread(lambda: None if process is None else process.wait_for_end(_ENDS_S))

    def kill(self, pid: int) -> None:
        """Kill a process that says nothing."""
        process = self._processes.get(pid)
        if process is not None:
            process.kill()

    def left(self, key: int) -> None:
        """Note that the worker uses a version no more."""
        with self._lock:
            servable = self._held.pop(key, None)
        if servable is not None:
            servable.release()

    def end(self) -> None:
        """Take everything back from a worker that is no more."""
        with self._lock:
            self._ended = True
            held, self._held = list(self._held.values()), {}
        for servable in held:
            servable.release()

    def _join(self, number: int, key: int) -> list[int]:
        model = self._hold(key).model
        if not isinstance(model, ProcessModel):
            raise StatusError(Code.UNIMPLEMENTED, "A model of this process cannot be shared.")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs:
            process = model.join(theirs)
            self._processes[process.pid] = process
            self._channel().pass_on(number, ours)
        for pid, each in list(self._processes.items()):
            if each.end is not None and each is not process:
                self._processes.pop(pid)
        return [process.pid, model.restarts]

    def _hold(self, key: int) -> Servable:
        with self._lock:
            held = self._held.get(key)
        if held is not None:
            return held
        lent = self._catalogue.lent(key)
        if lent is None:
            raise StatusError(Code.UNAVAILABLE, "The version has been unloaded.")
        with self._lock:
            # Of two that ask at once, or after the end, the second holds nothing.
            twice = self._ended or key in self._held
            if not twice:
                self._held[key] = lent
        if twice:
            lent.release()
        return lent


def in_thread(work: Callable[[], Any]) -> Future[Any]:
    """Do something that takes time in a thread of its own."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - is the answer
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future

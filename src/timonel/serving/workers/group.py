"""The leader of several workers: it loads, they listen."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from timonel.errors import ServingError
from timonel.serving.access.shared import SharedMemory
from timonel.serving.config import ModelSettings, ServerSettings
from timonel.serving.loader import Loader
from timonel.serving.monitoring.measures import proportional
from timonel.serving.monitoring.monitor import Monitor, page_of, traffic_of
from timonel.serving.monitoring.snapshot import Snapshot
from timonel.serving.monitoring.sums import summed
from timonel.serving.status import StatusError
from timonel.serving.workers.catalogue import SharedCatalogue
from timonel.serving.workers.channel import Channel
from timonel.serving.workers.lending import Lending, in_thread
from timonel.serving.workers.seat import Seat
from timonel.serving.workers.sharing import Places

_LOG = logging.getLogger(__name__)
_DEATHS_AT_START = 5
_COUNTS_S = 2.0
_APPLIED_S = 10.0
_MARGIN_S = 10.0


class Group:
    """Workers that share ports, and what they have in common.

    Args:
        settings: The server's.
        catalogue: The versions in memory.
        loader: What loads them.
        monitor: What counts loads and batches, which happen once for all.
        rest: REST's place, taken to be shared; none for no REST.
        grpc_port: gRPC's port; none for no such.
    """

    def __init__(
        self,
        settings: ServerSettings,
        catalogue: SharedCatalogue,
        loader: Loader,
        monitor: Monitor,
        rest: socket.socket | None,
        grpc_port: int | None,
    ) -> None:
        self._settings = settings
        self._catalogue = catalogue
        self._loader = loader
        self._monitor = monitor
        self._grpc_port = grpc_port
        self._places = Places(rest, settings.grpc.socket_path, settings.workers)
        self._memory = SharedMemory.make()
        self._seats = [Seat(index, self) for index in range(settings.workers)]
        self._condition = threading.Condition()
        self._generation = 0
        self._is_stale = False
        self._stopping = False
        self._failure: ServingError | None = None
        self._news: list[Any] | None = None
        self._past = Snapshot()
        self._announcer = threading.Thread(target=self._announce, name="news", daemon=True)

    def start(self) -> None:
        """Start the workers; they listen once models are served."""
        for seat in self._seats:
            seat.start()

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Have requests answered during the block, and those under way at its end.

        Raises:
            ServingError: A worker cannot listen.
        """
        self._catalogue.on_change = self._refresh
        self._refresh()
        self._announcer.start()
        await asyncio.to_thread(self._wait_until_ready)
        yield
        await asyncio.to_thread(self.stop)

    def stop(self) -> None:
        """Have all workers answer what is under way, and end. Idempotent."""
        with self._condition:
            self._stopping = True
            self._condition.notify_all()
        # Before they stop to accept: nothing may be left that accepts for nobody.
        self._places.close()
        for seat in self._seats:
            seat.drain()
        deadline = time.monotonic() + self._settings.drain_s + _MARGIN_S
        for seat in self._seats:
            seat.join(deadline)
        if self._announcer.is_alive():
            self._announcer.join()

    def descriptors(self, index: int) -> Sequence[int]:
        """Return what a worker inherits."""
        return [*self._places.descriptors(index), self._memory.descriptor]

    def away(self, index: int) -> None:
        """Note that a worker will not be back at once."""
        self._places.leave(index)

    def lending(self, channel: Callable[[], Channel]) -> Lending:
        """Return what a new worker borrows by."""
        return Lending(self._catalogue, channel)

    def answer(self, seat: Seat, name: str, values: Sequence[Any]) -> Any:
        """Answer a worker's question."""
        if name == "orders":
            return self._orders(seat.index)
        if name == "follow":
            return self._begin(seat)
        if name == "reconfigure":
            return self._reconfigure(values[1])
        if name == "traffic":
            return in_thread(lambda: self._traffic(values[1]))
        if name == "look":
            for other in self._seats:
                if other is not seat:
                    other.tell("look")
        if name == "page":
            return in_thread(self._page)
        if name == "failed":
            with self._condition:
                self._failure = ServingError(values[0], hint=values[1])
                self._condition.notify_all()
        return None

    def changed(self) -> None:
        """Note that a seat is not as it was."""
        with self._condition:
            self._condition.notify_all()

    def left(self, seat: Seat, counted: Snapshot, cause: str) -> None:
        """Note that a worker has ended, and what it had counted."""
        self._memory.forget(seat.index)
        with self._condition:
            self._past = summed(self._past, [counted])
            self._condition.notify_all()
        _LOG.debug("worker %d %s", seat.index, cause)

    def _orders(self, index: int) -> dict[str, Any]:
        unix = self._places.unix
        return {
            "index": index,
            "settings": self._settings.model_dump(mode="json"),
            "rest": self._places.rest(index),
            "unix": None if unix is None else unix.fileno(),
            "private": None if unix is None else f"{self._places.private}/{index}",
            "grpc_port": self._grpc_port,
            "memory": self._memory.descriptor,
        }

    def _begin(self, seat: Seat) -> None:
        with self._condition:
            if self._news is not None:
                seat.tell("news", self._news)

    def _refresh(self) -> int:
        """Have the workers told anew; return the generation of news with all that is now."""
        with self._condition:
            self._is_stale = True
            self._condition.notify_all()
            return self._generation + 1

    def _announce(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._is_stale or self._stopping)
                if self._stopping:
                    return
                self._is_stale = False
                self._generation += 1
                generation = self._generation
            news = self._catalogue.news(generation, self._loader.models).as_fields()
            with self._condition:
                self._news = news
                # To those that have not asked yet as well: they take the newest.
                for seat in self._seats:
                    seat.tell("news", news)

    def _wait_until_ready(self) -> None:
        def failed() -> ServingError | None:
            if self._failure is None and any(s.deaths >= _DEATHS_AT_START for s in self._seats):
                return ServingError(
                    f"expected {len(self._seats)} workers to start, but one died "
                    f"{_DEATHS_AT_START} times"
                )
            return self._failure

        with self._condition:
            self._condition.wait_for(
                lambda: failed() or self._stopping or all(seat.is_ready for seat in self._seats)
            )
            failure = failed()
        if failure is not None:
            raise failure

    def _reconfigure(self, models: Sequence[Any]) -> Future[Any]:
        """Replace the configuration; done when it is in force in every worker."""
        done = self._loader.reconfigure([ModelSettings.model_validate(each) for each in models])
        answer: Future[Any] = Future()

        def settle() -> None:
            generation = self._refresh()
            with self._condition:
                self._condition.wait_for(lambda: self._is_followed(generation), _APPLIED_S)
            answer.set_result(None)

        def finish(future: Future[None]) -> None:
            error = future.exception()
            if error is not None:
                answer.set_exception(error)
            else:
                in_thread(settle)

        done.add_done_callback(finish)
        return answer

    def _is_followed(self, generation: int) -> bool:
        return self._stopping or all(
            seat.applied >= generation for seat in self._seats if seat.is_ready
        )

    def _gathered(self, own: Snapshot, since: float | None = None) -> tuple[Snapshot, list[Any]]:
        """Return what all have counted, and the requests that ended after ``since``."""
        channels = [seat.channel for seat in self._seats]
        asked = [channel.ask("count", since) for channel in channels if channel is not None]
        recent: list[Any] = []
        for each in asked:
            # What one has told last holds where it does not answer.
            with contextlib.suppress(StatusError, TimeoutError):
                recent += each.result(_COUNTS_S) or ()
        with self._condition:
            others = [self._past, *(seat.counted for seat in self._seats)]
        return summed(own, others), recent

    def _traffic(self, since: float) -> list[Any]:
        """Return the traffic of all by model, and the requests that ended after ``since``."""
        whole, recent = self._gathered(self._monitor.counted(), since)
        traffic = traffic_of(whole.requests.items(), whole.batches.items())
        return [{name: list(each) for name, each in traffic.items()}, recent]

    def _page(self) -> str:
        """Return the metrics of all, in Prometheus' text format."""
        whole = self._gathered(self._monitor.snapshot())[0]
        pids = [seat.pid for seat in self._seats]
        fronts = sum(proportional(pid) for pid in pids if pid is not None)
        memory = {
            "server": whole.memory["server"] + fronts,
            "compute": max(0, whole.memory["compute"] - fronts),
        }
        return page_of(replace(whole, memory=memory)).decode()

"""Ray Serve as a peer of endpoints: the same measurements, while nothing else is deployed."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import _cores
import _load
import _servers
import _sides
from _jobs import BenchmarkError
from _load import Sample, Target
from _served import Models
from _sides import REST
from _turns import Plan, Running
from rows.throughput import served

_PATIENCE_S = 120.0
_REPLICA = "ray::ServeReplica"
"""Beginning of the title of a replica's process."""


@dataclass(frozen=True)
class RayServe:
    """Measures deployments of Ray Serve.

    Attributes:
        models: The models.
        rounds: Rounds of each measurement.
        seconds: Length of a window.
    """

    models: Models
    rounds: int
    seconds: float

    def latency(self, case: str, connections: int, rate: int) -> Sample:
        """Return medians at a steady rate."""
        with self._running(case, 1) as running:
            log = Path(running.target(self.models.cases[case], REST).body).with_suffix(".log")
            return self._median(
                lambda: _load.rest_at_rate(
                    self._target(running, case), connections, rate, self.seconds, log
                )
            )

    def throughput(self, case: str, replicas: int, connections: int) -> Sample:
        """Return medians of requests per second as fast as they are answered."""
        with self._running(case, replicas) as running:
            return self._median(
                lambda: _load.rest(self._target(running, case), connections, self.seconds)
            )

    def first_answer(self, case: str) -> float:
        """Return the median seconds from a request to its answer, without a replica before."""
        took = []
        with self._running(case, 1, from_zero=True) as running:
            target = self._target(running, case)
            for _ in range(self.rounds):
                _wait_for_zero(running)
                begun = time.perf_counter()
                _servers.post(target.url, target.body.read_bytes(), timeout_s=_PATIENCE_S)
                took.append(time.perf_counter() - begun)
        return statistics.median(took)

    @contextmanager
    def _running(self, case: str, replicas: int, *, from_zero: bool = False) -> Iterator[Running]:
        side = _sides.ray(replicas, False, from_zero=from_zero)
        found = self.models.cases[case]
        # A short name: the sockets of Ray's HAProxy are deep below, with 97 characters in all.
        with tempfile.TemporaryDirectory(prefix="tb-") as folder:
            plan = Plan(Path(folder), self.seconds, self.rounds, _PATIENCE_S, ("ray",))
            running = Running(side, served(self.models, found), plan, _cores.machine())
            try:
                running.first_answer(found)
                running.prepare(found, REST)
                yield running
            finally:
                running.server.stop()

    def _target(self, running: Running, case: str) -> Target:
        return running.target(self.models.cases[case], REST)

    def _median(self, measure: Callable[[], Sample]) -> Sample:
        # The first round warms up.
        found = [measure() for _ in range(self.rounds + 1)][1:]
        return Sample(
            *(statistics.median(getattr(each, name) for each in found)
              for name in ("rate", "p50_ms", "p99_ms"))
        )  # fmt: skip


def _wait_for_zero(running: Running) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while any(_title(pid).startswith(_REPLICA) for pid in running.server.pids()):
        if time.monotonic() > deadline:
            raise BenchmarkError(f"Ray Serve keeps its replica: {running.server.tail()}")
        time.sleep(0.1)


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""  # it has ended

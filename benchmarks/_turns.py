"""Servers of one model, measured in turns: each gets the machine for a window, then the next."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import _load
import _servers
import _sides
from _jobs import BenchmarkError
from _load import Sample, Target
from _served import Case
from _servers import EndedError, Server
from _sides import CALLS, REST, Model, Ports, Side

_WARM_S = 1.0


@dataclass(frozen=True)
class Plan:
    """How thoroughly to measure.

    Attributes:
        folder: A folder for what is written on the way.
        seconds: Length of a window.
        rounds: Windows of each side.
        patience_s: Seconds that a server has to give its first answer.
        peers: Whose servers take part.
    """

    folder: Path
    seconds: float
    rounds: int
    patience_s: float
    peers: tuple[str, ...]


@dataclass
class Result:
    """What the windows of one side found, or why there are none."""

    samples: list[Sample] = field(default_factory=list)
    failed: str | None = None

    @property
    def rates(self) -> list[float]:
        """Requests/s, window by window."""
        return [sample.rate for sample in self.samples]

    @property
    def rate(self) -> float:
        """The median of the windows."""
        return statistics.median(self.rates) if self.samples and not self.failed else 0.0

    def document(self) -> dict[str, Any]:
        """Return it as JSON holds it."""
        return asdict(self)


Results = dict[Side, Result]


class Running:
    """A side that has been started on a model.

    Args:
        side: The side.
        model: The model.
        plan: How thoroughly to measure.
        cores: Cores that it may use; None: those of servers.
    """

    def __init__(
        self, side: Side, model: Model, plan: Plan, cores: tuple[int, ...] | None = None
    ) -> None:
        self.side, self._plan = side, plan
        first = _servers.free_ports()
        self._ports = Ports(first, plan.folder / str(first))
        self._ports.folder.mkdir()
        self._targets: dict[tuple[str, str], Target] = {}
        if side.peer is not None:
            _sides.ready(side.peer)
        command, env = side.start(model, self._ports)
        self.server = Server(command, env, self._ports.folder, pipe=CALLS in side.asks, cores=cores)

    def first_answer(self, case: Case) -> float:
        """Wait for the first answer, or for a bound to be ready; return the seconds it took."""
        if CALLS in self.side.asks:
            self._line()
            return 0.0
        question = self.side.asks[REST](case)
        url = f"http://127.0.0.1:{self._ports.rest}{question.path}"
        took, _ = _servers.first_answer(
            self.server, url, question.body, self._plan.patience_s
        )  # fmt: skip
        return took

    def prepare(self, case: Case, way: str) -> None:
        """Check an answer, and write down what will be asked.

        Raises:
            BenchmarkError: The answer is wrong.
        """
        if way == CALLS:
            return
        question = self.side.asks[way](case)
        file = self._ports.folder / f"{case.name}-{way}"
        if way == REST:
            url = f"http://127.0.0.1:{self._ports.rest}{question.path}"
            answer, body = _servers.post(url, question.body), question.body
            size = len(answer)
        else:
            url = f"http://127.0.0.1:{self._ports.grpc}{question.path}"
            answer = _servers.call(self._ports.grpc, question.path, question.body, self.metadata)
            body, size = _load.framed(question.body), len(answer) + 5
        case.check(question.read(answer))
        file.write_bytes(body)
        self._targets[case.name, way] = Target(url, file, size, self.side.headers)

    def window(self, case: Case, way: str, seconds: float) -> Sample:
        """Load the server, or have the bound compute, for some seconds."""
        if way == CALLS:
            self._tell(str(seconds))
            return Sample(float(self._line()["rate"]), 0, 0)
        self.server.check()
        target = self._targets[case.name, way]
        if way == REST:
            return _load.rest(target, case.concurrency, seconds)
        return _load.grpc(target, case.concurrency, seconds, self._ports.folder / "h2load.log")

    def target(self, case: Case, way: str) -> Target:
        """Return where a case's requests go."""
        return self._targets[case.name, way]

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What goes with each call of gRPC."""
        pairs = (header.split(": ", 1) for header in self.side.headers)
        return tuple((name, value) for name, value in pairs)

    def _tell(self, line: str) -> None:
        assert self.server.process.stdin is not None
        self.server.process.stdin.write(f"{line}\n".encode())
        self.server.process.stdin.flush()

    def _line(self) -> dict[str, Any]:
        assert self.server.process.stdout is not None
        if line := self.server.process.stdout.readline():
            return dict(json.loads(line))
        self.server.process.wait()
        raise BenchmarkError(f"it ended: {self.server.tail()}")


class Table:
    """Sides that serve one model, all of them there at once, all but one of them frozen.

    A side that fails is kept with its reason, and takes no further part.
    """

    def __init__(self, model: Model, plan: Plan) -> None:
        self._model, self._plan = model, plan
        self._running: dict[Side, Running] = {}
        self._failed: dict[Side, str] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        for running in self._running.values():
            running.server.end()  # all of them at the same time
        self._stack.close()

    def seat(self, sides: Sequence[Side], case: Case) -> None:
        """Start sides one after the other, and wait for the first answer of each."""
        for side in sides:
            try:
                try:
                    self._running[side] = self._start(side, case)
                except EndedError:  # Ray gives its own processes 30 s, however busy the machine is
                    self._running[side] = self._start(side, case)
            except Exception as error:  # noqa: BLE001 - the others go on
                self._fail(side, error)

    def _start(self, side: Side, case: Case) -> Running:
        """Start a side, wait for its first answer, and freeze it."""
        running = Running(side, self._model, self._plan)
        try:
            took = running.first_answer(case)
        except BaseException:
            running.server.stop()
            raise
        self._stack.callback(running.server.stop)
        running.server.freeze()
        _say(f"{side.name}: there after {took:.1f} s")
        return running

    def measure(self, case: Case, ways: Sequence[str], bounds: Sequence[Side]) -> Iterator[Results]:
        """Yield what each side that speaks so does, way by way, and what bounds do.

        Args:
            case: What is asked.
            ways: REST, gRPC.
            bounds: Sides that know this case only, and are there so long.
        """
        with Table(self._model, self._plan) as guests:
            guests.seat(bounds, case)
            everyone = self._running | guests._running
            for way in ways:
                failed = {
                    side: Result(failed=why)
                    for side, why in (self._failed | guests._failed).items()
                    if way in side.asks or side.is_bound
                }
                sides = {
                    side: running
                    for side, running in everyone.items()
                    if way in side.asks or CALLS in side.asks
                }
                yield self._turns(case, way, sides) | failed

    def _turns(self, case: Case, way: str, sides: dict[Side, Running]) -> Results:
        results: Results = {side: Result() for side in sides}
        for turn in range(self._plan.rounds):
            for side, running in sides.items():
                if results[side].failed:
                    continue
                asked = way if way in side.asks else CALLS
                try:
                    with awake(running.server):
                        if not turn:
                            running.prepare(case, asked)
                            running.window(case, asked, max(_WARM_S, self._plan.seconds / 2))
                        sample = running.window(case, asked, self._plan.seconds)
                except Exception as error:  # noqa: BLE001 - the others go on
                    _say(f"{side.name}: {case.name} over {way} failed: {error}")
                    results[side].failed = f"{type(error).__name__}: {error}"
                    continue
                results[side].samples.append(sample)
        for side, result in results.items():
            _say(f"{case.name} over {way}: {side.name}: {result.rate:.1f}/s")
        return results

    def _fail(self, side: Side, error: Exception) -> None:
        _say(f"{side.name} failed: {error}")
        self._failed[side] = f"{type(error).__name__}: {error}"


@contextmanager
def awake(server: Server) -> Iterator[None]:
    """Give a server the processor for a while."""
    server.thaw()
    try:
        yield
    finally:
        server.freeze()


def best(results: Results, fits: Callable[[Side], bool]) -> Side | None:
    """Return the fastest of the sides that fit; none if none answered."""
    fitting = [side for side in results if fits(side) and results[side].rate]
    return max(fitting, key=lambda side: results[side].rate, default=None)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)

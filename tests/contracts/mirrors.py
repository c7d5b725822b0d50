"""Contract tests for mirrors, and an in-memory mirror.

Subclass `MirrorContract` in a test module, and implement how to create your mirror and how to read
what it wrote; pytest then runs the contract against it:

    class TestMyMirror(MirrorContract):
        def make(self, workspace):
            return MyMirror(workspace)

        def mirrored(self, workspace, run_id):
            ...  # ask the tracker itself, through its own client
"""

from __future__ import annotations

import abc
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from timonel.storage import Workspace
from timonel.tracking import Artifact, RunRecord, read_run, start_run
from timonel.tracking.events import FINISH, Event, decode_number
from timonel.tracking.mirrors.base import Mirror
from timonel.tracking.mirrors.feed import MirrorFeed, rebuild, sync_pending, sync_run


@dataclass
class MirroredRun:
    """Content of a run in a tracker, in timonel's terms.

    Attributes:
        status: ``running``, ``succeeded``, ``failed`` or ``stopped``.
        params: Values as strings.
        series: The (step, value) pairs of each metric, ordered by step, without repetitions.
        digests: The digests of input and output artifacts.
    """

    status: str = "running"
    params: dict[str, str] = field(default_factory=dict)
    series: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    digests: set[str] = field(default_factory=set)


class MirrorContract(abc.ABC):
    """Contract tests for mirrors."""

    @abc.abstractmethod
    def make(self, workspace: Workspace) -> Mirror:
        """Return a mirror of the workspace, as in a new process."""

    @abc.abstractmethod
    def mirrored(self, workspace: Workspace, run_id: str) -> list[MirroredRun]:
        """Return the tracker's runs with this ID: exactly one if correct."""

    def test_a_run_is_copied_as_it_is_recorded(self, workspace: Workspace) -> None:
        run = _some_run(workspace)
        results = sync_run(workspace, run.id, [self.make(workspace)])
        assert [(fed.is_complete, fed.error) for fed in results] == [(True, None)]
        assert_same(self._only(workspace, run.id), read_run(workspace, run.id))

    def test_a_run_is_followed_while_it_goes_on(self, workspace: Workspace) -> None:
        with start_run(workspace, "train", params={"lr": 0.5}) as run:
            feed = MirrorFeed(workspace, run.run_id, self.make(workspace))
            assert not feed.sync().is_complete
            assert self._only(workspace, run.run_id).status == "running"
            for step in range(3):
                run.metrics({"loss": 1 / (step + 1)}, step=step)
                assert feed.sync().events == 1
            assert feed.sync().events == 0
        assert feed.sync().is_complete
        assert_same(self._only(workspace, run.run_id), read_run(workspace, run.run_id))

    def test_another_process_goes_on_where_one_stopped(self, workspace: Workspace) -> None:
        with start_run(workspace, "train") as run:
            run.metrics({"loss": 1.0}, step=1)
            sync_run(workspace, run.run_id, [self.make(workspace)])
            run.metrics({"loss": 0.5}, step=2)
        (fed,) = sync_run(workspace, run.run_id, [self.make(workspace)])
        assert (fed.events, fed.is_complete) == (2, True)
        assert_same(self._only(workspace, run.run_id), read_run(workspace, run.run_id))

    def test_events_that_come_twice_count_once(self, workspace: Workspace) -> None:
        run = _some_run(workspace)
        sync_run(workspace, run.id, [self.make(workspace)])
        mirror = self.make(workspace)
        assert mirror.begin(run)
        mirror.events(run.events())
        mirror.end()
        assert_same(self._only(workspace, run.id), run)

    def test_a_lost_position_doubles_nothing(self, workspace: Workspace) -> None:
        run = _some_run(workspace)
        mirror = self.make(workspace)
        sync_run(workspace, run.id, [mirror])
        for path in (run.folder / "mirrors").glob("*.json"):
            path.write_text("spoilt")
        sync_run(workspace, run.id, [mirror])
        assert_same(self._only(workspace, run.id), run)

    def test_everything_can_be_rebuilt(self, workspace: Workspace) -> None:
        runs = [_some_run(workspace), _some_run(workspace)]
        for _ in range(2):
            results = rebuild(workspace, [self.make(workspace)])
            assert [fed.run_id for fed in results] == [run.id for run in runs]
            assert all(fed.is_complete for fed in results)
        for run in runs:
            assert_same(self._only(workspace, run.id), run)

    def test_what_ended_unseen_is_made_up_for(self, workspace: Workspace) -> None:
        ended = _some_run(workspace)
        start_run(workspace, "train", run_id="train-goes-on", job_id="job")
        assert sync_pending(workspace, [self.make(workspace)], stop=lambda: True) == []
        assert [fed.run_id for fed in sync_pending(workspace, [self.make(workspace)])] == [ended.id]
        assert sync_pending(workspace, [self.make(workspace)]) == []
        assert_same(self._only(workspace, ended.id), ended)

    def test_awkward_names_and_values_are_no_obstacle(self, workspace: Workspace) -> None:
        with start_run(workspace, "train") as run:
            run.params({"a b/../c": 1, "ü": "x", "'\"%": "'\"%", "long": "x" * 9000, "empty": ""})
            run.metrics({"../acc": 1.0, "a,b": 2.0, "nan": math.nan}, step=-1)
            run.metrics({"up": math.inf, "down": -math.inf}, epoch=2)
            run.event("unheard-of", x=1)
            run.event("input", artifact=None)
        (fed,) = sync_run(workspace, run.run_id, [self.make(workspace)])
        assert fed.error is None
        found = self._only(workspace, run.run_id)
        assert len(found.params) == 5
        assert math.isnan(found.series["nan"][0][1])
        assert found.series["up"][0][1] > 1e308
        assert found.series["down"][0][1] < -1e308

    def test_thousands_of_values_are_copied(self, workspace: Workspace) -> None:
        with start_run(workspace, "train", params={f"p{n}": n for n in range(250)}) as run:
            for step in range(1100):
                run.metrics({"a": float(step), "b": -float(step)}, step=step)
        sync_run(workspace, run.run_id, [self.make(workspace)])
        assert_same(self._only(workspace, run.run_id), read_run(workspace, run.run_id))

    def _only(self, workspace: Workspace, run_id: str) -> MirroredRun:
        found = self.mirrored(workspace, run_id)
        assert len(found) == 1, f"expected one run in the tracker, got {len(found)}"
        return found[0]


def assert_same(found: MirroredRun, record: RunRecord) -> None:
    """Check that a tracker's content matches the record."""
    assert found.status == record.status
    assert found.params == {name: as_text(value) for name, value in record.params.items()}
    assert found.series == {
        name: [(point.step or point.epoch or 0, point.value) for point in points]
        for name, points in record.series.items()
    }
    recorded = {item.digest for item in (*record.inputs, *record.outputs) if item.digest}
    assert found.digests == recorded


def as_text(value: Any) -> str:
    """Return a parameter's value as stored by trackers."""
    return json.dumps(value) if isinstance(value, list | dict) else str(value)


def _some_run(workspace: Workspace) -> RunRecord:
    """Return a run with an event of every copied type."""
    data = Artifact("dataset", "/data/digits", "sha256:" + "a" * 64, "digits")
    with start_run(workspace, "train", params={"lr": 0.1, "layers": [8, 4]}, inputs=[data]) as run:
        run.input(Artifact("source", "/code/train.py", "sha256:" + "b" * 64))
        run.params({"batch_size": 32})
        for epoch in range(3):
            run.metrics({"loss": 1 / (epoch + 1), "accuracy": 0.3 * epoch}, step=epoch * 10)
        run.output(Artifact("savedmodel", "/job/export", "sha256:" + "c" * 64))
    return read_run(workspace, run.run_id)


class MemoryMirror(Mirror):
    """Mirror for tests; stores runs in its creator's mapping.

    Attributes:
        fail_after: The number of further batches before it raises an error; None to never fail.
    """

    name: ClassVar[str] = "memory"

    def __init__(self, workspace: Workspace, store: dict[str, MirroredRun]) -> None:
        super().__init__(workspace)
        self.store = store
        self.fail_after: int | None = None
        self._run = MirroredRun()

    @classmethod
    def is_available(cls) -> bool:
        return True

    def begin(self, run: RunRecord) -> bool:
        known = run.id in self.store
        self._run = self.store.setdefault(run.id, MirroredRun())
        self._params(run.params)
        self._run.digests |= {item.digest for item in run.inputs if item.digest}
        return known

    def events(self, batch: Sequence[Event]) -> None:
        if self.fail_after is not None:
            self.fail_after -= 1
            if self.fail_after < 0:
                raise ConnectionError("the tracker is away")
        for event in batch:
            self._event(event)

    def end(self) -> None:
        self._run = MirroredRun()

    def _event(self, event: Event) -> None:
        artifact = event.get("artifact")
        if event["type"] == "params":
            self._params(event["params"])
        elif event["type"] == "metrics":
            self._metrics(event)
        elif event["type"] in {"input", "output"} and isinstance(artifact, dict):
            self._run.digests.add(artifact["digest"])
        elif event["type"] == FINISH:
            self._run.status = event["status"]

    def _params(self, params: Mapping[str, Any]) -> None:
        self._run.params.update({name: as_text(value) for name, value in params.items()})

    def _metrics(self, event: Event) -> None:
        step: int = event["step"] if "step" in event else event.get("epoch", 0)
        for name, value in event["metrics"].items():
            number = decode_number(value)
            assert number is not None
            points = dict(self._run.series.get(name, ()))
            points[step] = number
            self._run.series[name] = sorted(points.items())

"""What a task shows of itself: the time of its steps, and a profile of some of them."""

from __future__ import annotations

import inspect
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from timonel.errors import SpecError
from timonel.storage import Workspace
from timonel.tracking import RunWriter, read_run, start_run
from timonel.training.option_values import StepRange, parse_steps
from timonel.training.worker.private import tf_data
from timonel.training.worker.ps.pace import WorkerPaceReporter
from timonel.training.worker.reports.pace import INTERVAL_S, PaceReporter, Reading, Stopwatch
from timonel.training.worker.reports.profiling import Profiler, StepCount, callback_for


@pytest.fixture
def run(workspace: Workspace) -> RunWriter:
    return start_run(workspace, "train", run_id="train-1")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_stopwatch_tells_work_from_waiting() -> None:
    import tensorflow as tf

    watch = Stopwatch()

    def slept(seconds: float) -> Any:
        return tf.numpy_function(lambda: time.sleep(seconds) or 1.0, [], tf.float64)

    @tf.function
    def step() -> None:
        batch = slept(0.01)
        watch.has_batch([batch])
        with tf.control_dependencies([batch]):
            batches = slept(0.005)
        watch.have_batches([batches])
        with tf.control_dependencies([batches]):
            gradient = slept(0.02)
        assert watch.arrive([gradient])[0] is gradient
        with tf.control_dependencies([gradient]):
            total = slept(0.005)
        watch.arrive([total])  # of another replica of the same step
        watch.leave([total])
        watch.leave([gradient])

    begun = time.monotonic()
    step()
    assert watch.read() == Reading(0, 0.0, 0.0)  # it is not known when the first one began
    for _ in range(5):
        step()
    took_s = time.monotonic() - begun
    reading = watch.read()
    assert reading.steps == 5
    assert reading.work_s >= 5 * 0.03
    assert reading.wait_s >= 5 * 0.01
    assert reading.work_s + reading.wait_s <= took_s
    assert watch.read() == Reading(0, 0.0, 0.0)
    watch.pause()
    time.sleep(0.2)
    begun = time.monotonic()
    step()
    step()
    took_s = time.monotonic() - begun
    reading = watch.read()
    assert reading.steps == 1  # the first one began with the pause
    assert reading.work_s + reading.wait_s <= took_s


def test_a_stopwatch_stands_still_among_deterministic_operations() -> None:
    import tensorflow as tf
    from tensorflow.python.framework import config

    watch = Stopwatch()

    @tf.function
    def step() -> None:
        watch.leave(watch.arrive([tf.constant(1.0)]))

    tf.config.experimental.enable_op_determinism()
    try:
        step()  # TensorFlow refuses a clock
        step()
    finally:
        config.disable_op_determinism()
    assert watch.read() == Reading(0, 0.0, 0.0)


def test_a_task_tells_its_pace_now_and_then(run: RunWriter, workspace: Workspace) -> None:
    clock = Clock()
    readings = iter([Reading(20, 0.8, 0.2), Reading(0, 0.0, 0.0), Reading(10, 0.4, 0.1)])
    reporter = PaceReporter(
        run, "worker-3", lambda: next(readings), share=0.25, names_slowest=False, clock=clock
    )
    reporter.batch_size = 32
    for _ in range(35):
        reporter.tick()
        clock.now += INTERVAL_S / 10
    names = ("type", "task", "steps", "step_ms", "wait_ms", "examples_per_s")
    assert [
        tuple(event[name] for name in names) for event in read_run(workspace, "train-1").events()
    ] == [("pace", "worker-3", 20, 40.0, 10.0, 160.0), ("pace", "worker-3", 10, 40.0, 10.0, 160.0)]


def test_the_chief_warns_once_of_who_holds_up_the_others(
    run: RunWriter, workspace: Workspace
) -> None:
    clock = Clock()
    reporter = PaceReporter(
        run, "chief-0", lambda: Reading(10, 0.4, 0.2), share=0.5, names_slowest=True, clock=clock
    )
    path = run.folder / "events.jsonl"
    for number in range(12):
        clock.now += INTERVAL_S
        reporter.tick()
        t = time.time() + number * INTERVAL_S
        with path.open("a") as file:  # as another task tells it
            file.write(f'{{"t":{t},"type":"pace","task":"worker-0","step_ms":61.0}}\n')
    warnings = [e for e in read_run(workspace, "train-1").events() if e["type"] == "log"]
    assert [event["message"] for event in warnings] == [
        "worker-0 computes 61 ms a step, the others 40 ms: every step waits for it"
    ]


def test_the_moment_in_which_workers_have_their_batches_can_still_be_seen() -> None:
    import tensorflow as tf
    from tensorflow.python.distribute import input_lib

    original = getattr(input_lib, tf_data.AVAILABILITY_FUNCTION)
    assert list(inspect.signature(original).parameters) == [
        "strategy", "input_workers", "optional_list",
    ]  # fmt: skip
    source = inspect.getsource(input_lib.DistributedIteratorBase)
    assert source.count(f"{tf_data.AVAILABILITY_FUNCTION}(") == 2
    looked: list[str] = []
    undo = tf_data.watch_batches(
        lambda tensors: looked.append(f"before {len(tensors)}"),
        lambda tensors: looked.append(f"after {len(tensors)}"),
    )
    try:
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        rows = tf.data.Dataset.range(4).filter(lambda row: row < 3).batch(2)
        batches = strategy.experimental_distribute_dataset(rows)
        assert [batch.numpy().tolist() for batch in batches] == [[0, 1], [2]]
    finally:
        undo()
    assert set(looked) == {"before 1", "after 1"}
    assert getattr(input_lib, tf_data.AVAILABILITY_FUNCTION) is original


def test_the_chief_tells_the_pace_of_workers_of_parameter_servers(
    run: RunWriter, workspace: Workspace
) -> None:
    clock = Clock()
    reporter = WorkerPaceReporter(run, parts=2, clock=clock)
    reporter.batch_size = 32
    for number in range(100):
        clock.now += 0.1
        reporter.note(0, 0.1)
        if number % 2:
            reporter.note(1, 0.2)
    paces = [e for e in read_run(workspace, "train-1").events() if e["type"] == "pace"]
    names = ("task", "steps", "step_ms", "examples_per_s")
    first, second = ([tuple(e[n] for n in names) for e in paces if e["task"] == f"worker-{index}"]
                     for index in (0, 1))  # fmt: skip
    assert set(first) <= {("worker-0", 20, 100.0, 160.0), ("worker-0", 21, 100.0, 160.0)}
    assert set(second) <= {("worker-1", 10, 200.0, 80.0), ("worker-1", 11, 200.0, 80.0)}
    assert len(first) == len(second) == 4


@pytest.mark.parametrize(("text", "steps"), [("7", StepRange(7, 7)), ("10:20", StepRange(10, 20))])
def test_steps_are_named(text: str, steps: StepRange) -> None:
    assert parse_steps(text) == steps


def test_steps_are_numbered_through_epochs_and_restarts() -> None:
    params = {"steps": 10, "epochs": 5}
    from_scratch = StepCount(2, epoch=2)
    assert from_scratch.begin(0, params) == (30, 0)
    assert from_scratch.at(3) == 4
    later = StepCount(2, epoch=4)
    assert later.begin(6, params) == (30, 26)
    assert later.at(6) == 27
    told = StepCount(0, epoch=4, before=33)  # epochs need not be equally long
    assert told.begin(1, {"steps": None, "epochs": 5}) == (None, 34)
    assert StepCount(0, epoch=4).begin(1, {"steps": None, "epochs": 5}) == (None, None)


@pytest.mark.parametrize("text", ["0", "0:3", "5:4"])
def test_steps_that_are_none(text: str) -> None:
    with pytest.raises(SpecError, match="needs a range of steps that starts at 1"):
        parse_steps(text)


def profiled(
    folder: Path, steps: str, told: list[tuple[str, dict[str, Any]]], *, keras: Any = None,
    initial_epoch: int = 0, **options: Any,
) -> None:  # fmt: skip
    """Fit a small model for 3 epochs of 4 steps, some of which are profiled."""
    import keras as keras3
    import numpy as np

    keras = keras or keras3
    model = keras.Sequential(
        [keras.Input((8,)), keras.layers.Dense(16, name="wide"), keras.layers.Dense(1)]
    )
    model.compile("sgd", "mse", **options)
    profiler = Profiler(
        parse_steps(steps), folder / "tensorboard", "worker-0", scratch=folder / "scratch",
        tell=lambda message, facts: told.append((message, facts)),
        marks_steps=keras.__name__ == "keras",
    )  # fmt: skip
    callback = callback_for(keras, profiler, initial_epoch)
    rows = np.ones((32, 8), "float32")
    model.fit(rows, rows[:, :1], batch_size=8, epochs=3 + initial_epoch, verbose=0,
              initial_epoch=initial_epoch, callbacks=[callback])  # fmt: skip


def events_of(path: Path) -> Counter[str]:
    """Return how often each kind of event is in a profile."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace()
    space.ParseFromString(path.read_bytes())
    return Counter(
        plane.event_metadata[event.metadata_id].name
        for plane in space.planes
        for line in plane.lines
        for event in line.events
    )


@pytest.mark.parametrize("flavour", ["keras", "tf_keras"])
def test_a_profile_has_the_steps_that_were_asked_for_and_the_models_operations(
    flavour: str, tmp_path: Path
) -> None:
    keras = pytest.importorskip(flavour)
    told: list[tuple[str, dict[str, Any]]] = []
    profiled(tmp_path, "3:7", told, keras=keras, initial_epoch=2)
    path = tmp_path / "tensorboard" / "plugins" / "profile" / "steps_3_to_7" / "worker-0.xplane.pb"
    ((message, facts),) = told
    assert message == "profiled steps 3 to 7"
    assert facts["path"] == str(path)
    assert facts["logdir"] == str(tmp_path / "tensorboard")
    assert not (tmp_path / "scratch").exists()
    events = events_of(path)
    # Of each step there are the products of both layers, forwards and backwards.
    products = {name: count for name, count in events.items() if name.endswith("MatMul")}
    assert any("wide" in name for name in products), events
    assert set(products.values()) <= {5, 10}
    assert events["train"] == 5


def test_steps_that_cannot_be_profiled_are_an_error_before_the_first_one(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="10:13 exceeds the 12 steps"):
        profiled(tmp_path, "10:13", [])
    with pytest.raises(SpecError, match="runs 2 steps at once, but --profile 2:3"):
        profiled(tmp_path, "2:3", [], steps_per_execution=2)
    assert not (tmp_path / "tensorboard").exists()


def test_what_an_earlier_generation_has_done_is_not_profiled_in_part(tmp_path: Path) -> None:
    told: list[tuple[str, dict[str, Any]]] = []

    def profiler() -> Profiler:
        return Profiler(StepRange(3, 7), tmp_path, "chief-0", scratch=tmp_path / "scratch",
                        tell=lambda message, facts: told.append((message, facts)))  # fmt: skip

    unknown = profiler()
    unknown.begins(None, 1, None)
    unknown.step_begins(3)
    unknown.ends()
    resumed = profiler()
    resumed.begins(12, 1, 4)
    resumed.step_begins(5)
    resumed.step_ends(5, lambda: None)
    resumed.ends()
    ended = profiler()
    ended.begins(None, 1, 0)
    ended.ends()
    (tmp_path / "scratch").mkdir()
    (tmp_path / "scratch" / "collecting").touch()  # by a process that did not outlive it
    crashed = profiler()
    crashed.begins(None, 1, 0)
    crashed.step_begins(3)
    crashed.ends()
    assert told == [
        ("no profile of steps 3 to 7: training went on after a step of unknown number", {}),
        ("no profile of steps 3 to 7: training went on after step 4", {}),
        ("no profile of steps 3 to 7: training ended before", {}),
        ("no profile of steps 3 to 7: TensorFlow has crashed when it collected them", {}),
    ]

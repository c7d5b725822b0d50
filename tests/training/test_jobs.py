"""Real jobs on the local engine: what training promises, seen from outside.

Each job costs seconds of start-up, so each test asks one job many questions.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.training.conftest import SCRIPTS, BareEngine, log_of, results
from timonel.data import Dataset
from timonel.engines import FailureCause, JobState
from timonel.errors import Interrupted, UserCodeError
from timonel.models import export
from timonel.models.exports import reference_of, verify_export
from timonel.storage import Workspace
from timonel.training import Run, train

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def alone(
    dataset: Dataset, jobs_workspace: Workspace, tmp_path_factory: pytest.TempPathFactory
) -> Run:
    """The plain script in one process, which others are compared with."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIMONEL_WARM_LINGER", "30")
        return _train(dataset, jobs_workspace, BareEngine(jobs_workspace.jobs), seed=7)


def test_one_worker(alone: Run, dataset: Dataset) -> None:
    found = results(alone)["chief-0"]
    assert found["argv"] == ["--lr=0.1", "--epochs", "2"]
    assert found["cwd"] == str(Path.cwd())
    assert found["path"] == str(SCRIPTS)
    assert found["params"] == {"lr": "0.1"}
    assert np.allclose(found["predicted"], found["called"], atol=1e-6)

    record = alone.record
    assert record.status == "succeeded"
    assert record.params["lr"] == "0.1"
    assert record.params["timonel.seed"] == 7
    assert [point.value for point in record.series["val_accuracy"]] == pytest.approx(
        found["histories"][0]["val_accuracy"]
    )
    assert [point.epoch for point in record.series["loss"]] == [0, 1, 2]
    assert {artifact.type for artifact in record.inputs} == {"dataset", "source"}
    assert {artifact.digest for artifact in record.inputs} >= {dataset.digest}
    assert (record.folder / "source" / "plain.py").read_bytes() == (
        SCRIPTS / "plain.py"
    ).read_bytes()

    job = alone.workspace.jobs / alone.id
    export = verify_export(job / "export")
    # The last fit was on arrays: what raw input would be is not known.
    assert export.preparation.input_kind == "tensor"
    assert [a.digest for a in record.outputs if a.type == "savedmodel"] == [export.digest]
    assert list((job / "tensorboard" / "validation").glob("events.*"))
    progress = [event for event in record.events() if event["type"] == "progress"]
    assert {"epoch", "epochs", "step", "steps", "loss", "examples_per_s", "eta_s"} <= set(
        progress[-1]
    )


@pytest.mark.soak
def test_plain_start_trains_to_the_same_weights(
    alone: Run, dataset: Dataset, jobs_workspace: Workspace, engine: BareEngine
) -> None:
    cold = _train(dataset, jobs_workspace, engine, seed=7, warm=False)
    assert results(cold)["chief-0"]["weights"] == results(alone)["chief-0"]["weights"]


def test_several_devices(
    alone: Run, dataset: Dataset, jobs_workspace: Workspace, engine: BareEngine
) -> None:
    run = _train(dataset, jobs_workspace, engine, seed=7, devices_per_worker=2)
    _assert_agrees(results(run)["chief-0"], results(alone)["chief-0"])
    assert "divided among 2 replicas" in log_of(run)


def test_two_workers(
    alone: Run, dataset: Dataset, jobs_workspace: Workspace, engine: BareEngine
) -> None:
    run = _train(dataset, jobs_workspace, engine, seed=7, workers=2)
    found = results(run)
    assert found["chief-0"]["weights"] == found["worker-0"]["weights"]
    assert found["chief-0"]["histories"] == found["worker-0"]["histories"]
    for task in found.values():
        _assert_agrees(task, results(alone)["chief-0"])
    assert verify_export(jobs_workspace.jobs / run.id / "export").model.parameters > 0


@pytest.mark.parametrize("flavour", [pytest.param("keras", marks=pytest.mark.soak), "tf_keras"])
def test_two_workers_with_layers_that_keep_averages(
    flavour: str,
    jobs_workspace: Workspace,
    engine: BareEngine,
    tmp_path: Path,
) -> None:
    script = tmp_path / "layers.py"
    text = (SCRIPTS / "layers.py").read_text()
    script.write_text(text.replace("import keras\n", f"import {flavour} as keras\n"))
    run = train(script, workspace=jobs_workspace, on=engine, workers=2)
    found = results(run)
    assert found["chief-0"]["keras"].startswith(flavour)
    assert found["chief-0"]["history"] == found["worker-0"]["history"]
    assert set(found["chief-0"]["history"]) == {"accuracy", "loss", "val_accuracy", "val_loss"}
    for ours, theirs in zip(found["chief-0"]["weights"], found["worker-0"]["weights"], strict=True):
        assert np.array_equal(ours, theirs)
    assert np.allclose(found["chief-0"]["predicted"], found["chief-0"]["called"], atol=1e-5)


def test_files_that_every_worker_saves_are_the_chiefs(
    jobs_workspace: Workspace, engine: BareEngine, tmp_path: Path
) -> None:
    run = train(
        SCRIPTS / "saving.py",
        args=[str(tmp_path)],
        workspace=jobs_workspace,
        on=engine,
        workers=3,
    )
    found = results(run)
    assert len(found) == 3
    kernel = np.array(found["chief-0"]["kernel"], np.float32)
    for task in found.values():
        assert task["same"]
        assert task["latest"] == str(tmp_path / "ckpt" / "ckpt-3")
        assert np.array_equal(task["kernel"], kernel)
    names = [*(f"epoch-{n}.keras" for n in (1, 2, 3, 4)), *(f"again-{n}.keras" for n in range(5))]
    for name in (*names, "model.keras"):
        first = keras.models.load_model(tmp_path / name).get_weights()[0]
        assert np.array_equal(first, kernel) == (name not in names[:3]), name
    for name in ("best.weights.h5", "last.weights.h5", "backup/latest.weights.h5"):
        with h5py.File(tmp_path / name) as file:
            assert "layers" in file
    assert len((tmp_path / "log.csv").read_text().splitlines()) == 5
    for name in ("exported", "saved"):
        assert tf.saved_model.load(str(tmp_path / name)).signatures["serving_default"]
    checkpoint = tf.train.load_checkpoint(tf.train.latest_checkpoint(str(tmp_path / "ckpt")))
    assert any(
        np.array_equal(checkpoint.get_tensor(key), kernel)
        for key in checkpoint.get_variable_to_shape_map()
    )
    assert not list((jobs_workspace.jobs / run.id).rglob("scratch"))


def test_a_script_that_builds_the_jobs_strategy_itself(
    jobs_workspace: Workspace, engine: BareEngine, tmp_path: Path
) -> None:
    run = train(
        SCRIPTS / "distributed.py",
        args=[str(tmp_path)],
        workspace=jobs_workspace,
        on=engine,
        workers=2,
    )
    found = results(run)
    assert found["chief-0"] == found["worker-0"]
    assert len(found["chief-0"]["losses"]) == 5
    assert np.isfinite(found["chief-0"]["losses"]).all()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["ckpt", "model.keras"]
    saved = keras.models.load_model(tmp_path / "model.keras").get_weights()
    assert np.allclose(saved[0], found["chief-0"]["weights"][0])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "tf.distribute.MirroredStrategy()",
            "creates a tf.distribute.MirroredStrategy, but .*--devices-per-worker 2",
        ),
        (
            "with tf.GradientTape() as tape: value = v * 2\ntape.gradient(value, v)",
            r"must run its step with context\(\).strategy.run",
        ),
    ],
)
def test_what_goes_against_the_jobs_strategy_is_one_line(
    line: str, message: str, jobs_workspace: Workspace, engine: BareEngine, tmp_path: Path
) -> None:
    script = tmp_path / "against.py"
    script.write_text(f"import tensorflow as tf\nimport keras\nv = tf.Variable(1.0)\n{line}\n")
    with pytest.raises(UserCodeError, match=message) as caught:
        train(script, workspace=jobs_workspace, on=engine, workers=2)
    assert str(caught.value).count("\n") <= 8


def test_the_users_error_is_shown_once_and_nothing_else(
    jobs_workspace: Workspace, engine: BareEngine
) -> None:
    with pytest.raises(UserCodeError) as caught:
        train(SCRIPTS / "broken.py", workspace=jobs_workspace, on=engine, workers=2)
    text = str(caught.value)
    assert text.count("the user's mistake") == 2  # the line of code, and the error
    assert text.splitlines()[-1] == "ValueError: the user's mistake"
    assert str(SCRIPTS / "broken.py") in text
    assert "timonel/training" not in text
    newest = engine.jobs()[0]
    assert (newest.state, newest.cause) == (JobState.FAILED, FailureCause.USER_ERROR)
    assert newest.restarts == 0


def test_a_script_that_fails_after_fit_keeps_its_model(
    jobs_workspace: Workspace, engine: BareEngine, tmp_path: Path
) -> None:
    script = tmp_path / "old.py"
    script.write_text(
        "import keras, numpy as np\n"
        "model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, name='last')])\n"
        "model.compile('sgd', 'mse')\n"
        "model.fit(np.zeros((8, 4)), np.zeros(8))\n"
        "model.save('trained')\n"
    )
    with pytest.raises(UserCodeError, match=r"model\.save\('model\.keras'\)") as caught:
        train(script, workspace=jobs_workspace, on=engine)
    assert "TF_USE_LEGACY_KERAS=1" in str(caught.value)
    version = export("last", name="kept", workspace=jobs_workspace, optimize=False)
    assert set(version.signatures["serving_default"].outputs) == {"last"}


def test_a_script_of_its_own_loop_has_the_model_that_it_saved(
    jobs_workspace: Workspace, engine: BareEngine, tmp_path: Path
) -> None:
    script = tmp_path / "loop.py"
    script.write_text(
        "import keras, numpy as np\n"
        "model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, name='last')])\n"
        "model.compile('sgd', 'mse')\n"
        "model.train_on_batch(np.zeros((8, 4)), np.zeros(8))\n"
        f"model.save({str(tmp_path / 'model.keras')!r})\n"
    )
    run = train(script, workspace=jobs_workspace, on=engine)
    assert [artifact.type for artifact in run.record.outputs] == ["savedmodel"]


def test_damaged_held_out_records_do_not_cost_the_model(
    dataset: Dataset, jobs_workspace: Workspace, engine: BareEngine, tmp_path: Path
) -> None:
    copy = Dataset.open(shutil.copytree(dataset.uri, tmp_path / "copy"))
    shard = copy.shards("test")[0]
    content = bytearray(shard.read_bytes())
    content[40] ^= 1
    shard.write_bytes(content)
    run = train(SCRIPTS / "slow.py", data=copy.uri, workspace=jobs_workspace, on=engine)
    folder = jobs_workspace.jobs / run.id / "export"
    assert reference_of(folder, verify_export(folder)) == []
    assert "no reference predictions in the export: " in log_of(run)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_stop_keeps_the_checkpoint(
    workers: int, dataset: Dataset, jobs_workspace: Workspace, engine: BareEngine
) -> None:
    def interrupt(event: Any) -> None:
        if event["type"] == "checkpoint":
            raise KeyboardInterrupt

    with pytest.raises(Interrupted, match="has stopped"):
        train(
            SCRIPTS / "slow.py",
            data=dataset.uri,
            workers=workers,
            workspace=jobs_workspace,
            on=engine,
            progress=interrupt,
        )
    newest = engine.jobs()[0]
    assert newest.state is JobState.STOPPED
    # One that has left by itself pulls the others out of the step they are in: some may see a lost
    # peer before their own signal, but none is left to be killed when its grace is over.
    assert [task.signal for task in newest.tasks] == [None] * workers
    checkpoints = jobs_workspace.jobs / newest.job_id / "checkpoints"
    assert list(checkpoints.glob("fit-000/epoch-*/state.json"))
    assert not list(checkpoints.glob("**/.tmp-*"))


def test_a_killed_worker_costs_one_epoch_at_most(
    dataset: Dataset, jobs_workspace: Workspace, engine: BareEngine
) -> None:
    killed = threading.Event()

    def kill(event: Any) -> None:
        if event["type"] == "checkpoint" and not killed.is_set():
            killed.set()
            time.sleep(0.3)  # into the next epoch
            os.kill(_pid(engine, "worker-0"), signal.SIGKILL)

    run = train(
        SCRIPTS / "slow.py",
        data=dataset.uri,
        workers=2,
        workspace=jobs_workspace,
        on=engine,
        progress=kill,
    )
    assert killed.is_set()
    found = results(run)
    assert found["chief-0"]["epochs"] == found["worker-0"]["epochs"] == [0, 1, 2, 3]
    assert len(found["chief-0"]["loss"]) == 4
    assert run.record.restarts == run.job.status().restarts == 1
    (restart,) = (event for event in run.record.events() if event["type"] == "restart")
    assert restart["message"] == "worker-0 was ended by signal 9 (SIGKILL)"
    assert " INFO " not in log_of(run)
    points = run.record.series["loss"]
    assert [(point.epoch, point.step) for point in points] == [(0, 6), (1, 12), (2, 18), (3, 24)]
    assert "resumes at epoch 2" in log_of(run)
    export = verify_export(jobs_workspace.jobs / run.id / "export")
    assert export.preparation.input_kind == "image"
    assert export.labels == dataset.labels
    assert len(reference_of(jobs_workspace.jobs / run.id / "export", export)) == dataset.count(
        "test"
    )


def test_a_script_that_distributes_itself_is_left_alone(
    jobs_workspace: Workspace, engine: BareEngine
) -> None:
    run = train(
        SCRIPTS / "alone.py",
        workspace=jobs_workspace,
        on=engine,
        workers=2,
        strategy="none",
        warm=False,
        pass_job_dir=True,
    )
    found = results(run)
    assert found["worker-0"]["tf_config"]["task"] == {"type": "worker", "index": 0}
    assert found["chief-0"]["tf_config"]["cluster"] == found["worker-0"]["tf_config"]["cluster"]
    assert found["chief-0"]["job_dir"] == str(jobs_workspace.jobs / run.id)
    assert not found["chief-0"]["tensorflow"]
    assert {artifact.type for artifact in run.record.outputs} == set()


def test_a_cluster_without_a_chief(jobs_workspace: Workspace, engine: BareEngine) -> None:
    run = train(
        SCRIPTS / "alone.py",
        workspace=jobs_workspace,
        on=engine,
        workers=2,
        strategy="none",
        chief="worker",
        warm=False,
        pass_job_dir=True,
    )
    told = [found["tf_config"] for found in results(run).values()]
    assert [config["task"] for config in told] == [{"type": "worker", "index": n} for n in (0, 1)]
    assert {role: len(found) for role, found in told[0]["cluster"].items()} == {"worker": 2}


def test_worker_0_leads_where_there_is_no_chief(
    dataset: Dataset, jobs_workspace: Workspace, engine: BareEngine
) -> None:
    run = _train(dataset, jobs_workspace, engine, workers=2, chief="worker")
    found = results(run)
    assert sorted(found) == ["worker-0", "worker-1"]
    assert found["worker-0"]["weights"] == found["worker-1"]["weights"]
    warnings = [event["message"] for event in run.record.events() if event["type"] == "log"]
    assert sum("Both workers share this machine's " in message for message in warnings) == 1
    assert "savedmodel" in {artifact.type for artifact in run.record.outputs}


@pytest.mark.parametrize("options", [{"ps": 1}, {"chief": "worker", "success_policy": "chief"}])
def test_the_chiefs_end_is_the_jobs(
    jobs_workspace: Workspace, engine: BareEngine, tmp_path: Path, options: dict[str, Any]
) -> None:
    script = tmp_path / "join.py"
    script.write_text(
        "import time\n"
        "from timonel.training import context\n"
        "while not context().cluster.is_chief:\n"
        "    time.sleep(0.1)  # as tf.distribute.Server.join\n"
    )
    run = train(script, workspace=jobs_workspace, on=engine, workers=2, strategy="none", **options)
    ends = [task.state for task in run.job.status().tasks]
    assert ends == ["succeeded", *["stopped"] * (len(ends) - 1)]


def _train(dataset: Dataset, workspace: Workspace, engine: BareEngine, **options: Any) -> Run:
    return train(
        SCRIPTS / "plain.py",
        data=dataset.uri,
        params={"lr": 0.1},
        args=["--epochs", "2"],
        workspace=workspace,
        on=engine,
        **options,
    )


def _assert_agrees(found: dict[str, Any], alone: dict[str, Any]) -> None:
    """Several replicas train as one process does with the same global batch size."""
    for ours, theirs in zip(found["histories"], alone["histories"], strict=True):
        assert set(ours) == set(theirs)
        for name in theirs:
            assert np.allclose(ours[name], theirs[name], atol=0.02), name
    for name in ("evaluated", "evaluated_arrays", "predicted"):
        assert np.allclose(found[name], alone[name], atol=1e-3), name
    for ours, theirs in zip(found["weights"], alone["weights"], strict=True):
        assert np.allclose(ours, theirs, atol=1e-3)
    assert np.allclose(found["predicted"], found["called"], atol=1e-5)


def _pid(engine: BareEngine, task_id: str) -> int:
    tasks = engine.jobs()[0].tasks
    return next(task.pid for task in tasks if task.task_id == task_id and task.pid)

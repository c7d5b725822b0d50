"""Jobs with another precision, batches, gradients and learning rate, seen from outside."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import timonel
from tests.training.conftest import SCRIPTS, BareEngine, log_of, results
from timonel.data import Dataset
from timonel.engines import FailureCause
from timonel.errors import UserCodeError
from timonel.storage import Workspace
from timonel.training import Run, train

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]


def run_numerics(dataset: Dataset, workspace: Workspace, engine: BareEngine, **options: Any) -> Run:
    return train(
        SCRIPTS / "numerics.py", data=dataset.uri, workspace=workspace, on=engine, **options
    )


@pytest.mark.soak
def test_two_workers_with_everything(
    dataset: Dataset, jobs_workspace: Workspace, engine: BareEngine
) -> None:
    run = run_numerics(
        dataset,
        jobs_workspace,
        engine,
        workers=2,
        precision="bfloat16",
        compress_gradients="float16",
        collectives="ring",
        batch_size_is="per-replica",
        accumulate_gradients=2,
        scale_learning_rate="linear",
        learning_rate_warmup=2,
        deterministic=True,
    )
    found = results(run)
    assert found["chief-0"] == found["worker-0"]
    assert found["chief-0"]["policy"] == "mixed_bfloat16"
    # 96 rows in batches of 16 are 6 a pass: 18 batches, 9 updates.
    assert found["chief-0"]["updates"] == 9
    log = log_of(run)
    assert "8 per replica, 16 in total; each update uses 2 batches, 32 rows" in log
    assert "multiplied by 2 (linear, 2 replicas) and warms up over 2 updates" in log
    # The callback halves the script's own rate after the second epoch and the third: what updates
    # are made with is twice that.
    rates = [point.value for point in run.record.series["learning_rate"]]
    assert rates == pytest.approx([0.02, 0.01, 0.005])
    assert found["chief-0"]["own_rate"] == pytest.approx(0.0025)
    devices = run.record.devices
    assert devices["strategy"] == "multi-worker"
    # Its last layer computes in float32, as the script says.
    assert (devices["replicas"], devices["precision"]) == (2, "float32, mixed_bfloat16")
    assert (devices["collectives"], devices["compress_gradients"]) == ("ring", "float16")
    assert devices["deterministic"]
    # Exporting checks the served model against what training predicts for raw held-out records.
    version = timonel.export(run.id, name="mixed", workspace=jobs_workspace)
    assert version.number == 1


@pytest.mark.soak
@pytest.mark.parametrize("workers", [1, 2])
def test_float16_scales_the_loss_and_is_exported(
    workers: int, dataset: Dataset, jobs_workspace: Workspace, engine: BareEngine
) -> None:
    run = run_numerics(dataset, jobs_workspace, engine, workers=workers, precision="float16")
    found = results(run)["chief-0"]
    assert (found["policy"], found["optimizer"]) == ("mixed_float16", "LossScaleOptimizer")
    timonel.export(run.id, name=f"half-{workers}", workspace=jobs_workspace)


@pytest.mark.soak
@pytest.mark.parametrize("workers", [1, 2])
def test_a_kill_between_two_updates_costs_no_gradient(
    workers: int, jobs_workspace: Workspace, engine: BareEngine
) -> None:
    options: dict[str, Any] = {
        "workspace": jobs_workspace,
        "on": engine,
        "workers": workers,
        "accumulate_gradients": 3,
        "learning_rate_warmup": 5,
        "scale_learning_rate": "sqrt",
        "compress_gradients": "float16" if workers > 1 else None,
        "checkpoint_steps": 2,
        "deterministic": True,
        "seed": 3,
    }
    seen: list[Any] = []

    def kill(event: Any) -> None:
        if event["type"] == "checkpoint":
            seen.append(event)
            # After 4 batches and after 10: each time one of the three that make up an update.
            if len(seen) in {2, 5}:
                os.kill(next(t.pid for t in engine.jobs()[0].tasks[::-1] if t.pid), signal.SIGKILL)

    whole = results(train(SCRIPTS / "updates.py", **options))
    run = train(SCRIPTS / "updates.py", progress=kill, **options)
    assert run.record.restarts == 2
    for task, found in results(run).items():
        assert found["updates"] == whole[task]["updates"] == 10
        for ours, theirs in zip(found["weights"], whole[task]["weights"], strict=True):
            assert np.allclose(ours, theirs, atol=1e-6)


def test_what_this_machine_lacks_is_said_once(
    dataset: Dataset, jobs_workspace: Workspace, engine: BareEngine
) -> None:
    with pytest.raises(UserCodeError) as caught:
        run_numerics(dataset, jobs_workspace, engine, workers=2, memory_per_device="1GB")
    assert str(caught.value).count("cannot limit device memory to 1.0 GB") == 1
    newest = engine.jobs()[0]
    assert (newest.cause, newest.restarts) == (FailureCause.USER_ERROR, 0)


@pytest.mark.parametrize(
    ("flavour", "options"),
    [
        ("keras", {"workers": 2}),
        pytest.param("keras", {"devices_per_worker": 2}, marks=pytest.mark.soak),
        pytest.param("tf_keras", {"workers": 2}, marks=pytest.mark.soak),
        pytest.param("keras", {"workers": 3}, marks=pytest.mark.soak),
    ],
)
def test_several_replicas_report_and_train_as_one_device_does(
    flavour: str,
    options: dict[str, Any],
    jobs_workspace: Workspace,
    engine: BareEngine,
    tmp_path: Path,
) -> None:
    script = tmp_path / "guides.py"
    text = (SCRIPTS / "guides.py").read_text()
    script.write_text(text.replace("import keras\n", f"import {flavour} as keras\n"))
    alone = train(script, workspace=jobs_workspace, on=engine)
    run = train(script, workspace=jobs_workspace, on=engine, **options)
    expected, found = results(alone)["chief-0"]["found"], results(run)["chief-0"]["found"]
    assert found.keys() == expected.keys()
    # A mean of the script's own trains otherwise, which is said.
    warning = "The train_step of OwnLoss computes a loss, or a part of it, without Keras"
    assert warning in log_of(run)
    assert warning not in log_of(alone)
    for name in expected:
        if not name.startswith("own loss"):
            assert found[name] == approximately(expected[name]), name
    for values in results(run)["chief-0"]["finite"].values():
        assert np.isfinite(values).all()


def approximately(value: Any) -> Any:
    """Return a structure of numbers whose numbers need be equal to six digits only."""
    if isinstance(value, dict):
        return {key: approximately(found) for key, found in value.items()}
    if isinstance(value, list):
        return [approximately(found) for found in value]
    return pytest.approx(value, rel=1e-4, abs=1e-5)

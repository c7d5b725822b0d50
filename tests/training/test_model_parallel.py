"""The examples of model parallelism: layers and members on several devices, as a user runs them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.training.conftest import BareEngine, log_of
from timonel.models.exports import verify_export
from timonel.storage import Workspace
from timonel.training import Run, train

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]
EXAMPLES = Path(__file__).parents[2] / "examples" / "model_parallel"


@pytest.fixture
def both_devices(jobs_workspace: Workspace, engine: BareEngine):
    def run(script: str) -> Run:
        return train(
            EXAMPLES / script,
            strategy="one-device",
            devices_per_worker=2,
            workspace=jobs_workspace,
            on=engine,
        )

    return run


def test_layers_on_two_devices(both_devices) -> None:
    run = both_devices("layers.py")
    placed = [line for line in log_of(run).splitlines() if line.startswith("weights of shape")]
    assert [line[-5:] for line in placed] == ["CPU:0"] * 4 + ["CPU:1"] * 4
    assert run.record.metrics["accuracy"] > 0.8
    assert run.record.devices["names"] == ["CPU:0", "CPU:1"]
    assert (run.record.devices["strategy"], run.record.devices["replicas"]) == ("one-device", 1)


def test_an_ensemble_is_one_model_that_needs_one_device(both_devices) -> None:
    import tensorflow as tf

    run = both_devices("ensemble.py")
    placed = {line[-5:] for line in log_of(run).splitlines() if line.startswith("weights")}
    assert placed == {"CPU:0", "CPU:1"}
    export = verify_export(run.workspace.jobs / run.id / "export")
    assert export.preparation.input_kind == "tensor"
    loaded = tf.saved_model.load(str(run.workspace.jobs / run.id / "export" / "saved_model"))
    assert len(tf.config.list_logical_devices("CPU")) == 1
    scores = loaded.signatures["serving_default"](tf.zeros((2, 64)))
    (found,) = scores.values()
    assert np.allclose(np.sum(found, axis=-1), 1.0, atol=1e-5)

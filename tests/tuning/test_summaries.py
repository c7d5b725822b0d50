"""Studies of scripts that report their metric to TensorBoard or to cloudml-hypertune only."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

from timonel.errors import SpecError
from timonel.storage import Workspace
from timonel.tuning import open_study, tune

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]
SCRIPT = Path(__file__).parent / "scripts" / "summaries.py"
TAG = "training/hptuning/metric"
CONFIG = """
trainingInput:
  scaleTier: CUSTOM
  jobDir: gs://bucket/output
  args: [--way, {way}]
  hyperparameters:
    goal: MAXIMIZE
    maxTrials: 3
    maxParallelTrials: 2
    algorithm: RANDOM_SEARCH
    params:
    - {{parameterName: x, type: DOUBLE, minValue: 0, maxValue: 1}}
"""


@pytest.mark.parametrize("way", ["tf2", "tf1", "job-dir", "hypertune"])
def test_a_job_of_ai_platform_finds_its_metric(
    workspace: Workspace, tmp_path: Path, way: str
) -> None:
    config = tmp_path / "tuning.yaml"
    config.write_text(CONFIG.format(way=way))
    with tf.summary.create_file_writer(str(tmp_path / "logs")).as_default():
        tf.summary.scalar(TAG, 100.0, step=100)  # of earlier work
    command = [sys.executable, "-m", "timonel", "-w", str(workspace.root), "tune", str(SCRIPT)]
    done = subprocess.run(
        [*command, "--config", str(config), "--study", f"tags-{way}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "200"},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    trials = open_study(workspace, f"tags-{way}").trials
    assert [trial.status for trial in trials] == ["succeeded"] * 3
    for trial in trials:
        x = float(trial.params["x"])
        assert [step for step, _ in trial.curve] == [0, 1, 2]
        assert [value for _, value in trial.curve] == pytest.approx([x, x + 1, x + 2])
        assert trial.values == pytest.approx((x + 2,))


def test_the_error_lists_metrics_and_scalars(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SpecError, match="recorded no metric 'epoch_auc'") as caught:
        tune(SCRIPT, ["x=float(0,1)"], "epoch_auc", study="no-tag", workspace=workspace, trials=5)
    assert f"it recorded: none; TensorBoard scalars: {TAG}" in (caught.value.hint or "")


def test_the_tag_of_keras_is_that_of_validation(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = tune(
        SCRIPT,
        ["x=float(0,1)", "way=keras"],
        "epoch_loss",
        goal="minimize",
        study="keras",
        workspace=workspace,
        trials=2,
        parallel=2,
    )
    for trial in found.trials:
        recorded = found.run_of(trial).record.metrics
        assert recorded["val_loss"] > 1000 > recorded["loss"]
        assert trial.values == pytest.approx((recorded["val_loss"],))
        assert [step for step, _ in trial.curve] == [0, 1, 2]

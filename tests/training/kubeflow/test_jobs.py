"""Jobs from manifests on this machine; those of TFJobs without TensorFlow, which saves seconds."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.training.conftest import BareEngine, log_of, results
from timonel.errors import JobError, SpecError, UserCodeError
from timonel.storage import Workspace
from timonel.training import Run, train

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

_WRITES = """
import json, os, sys, time
from pathlib import Path
config = json.loads(os.environ["TF_CONFIG"])
task = config["task"]
name = f"{task['type']}-{task['index']}"
found = {"config": config, "argv": sys.argv[1:], "level": os.environ.get("LEVEL")}
Path(os.environ["FOLDER"], f"{name}.json").write_text(json.dumps(found))
if task["type"] in {"ps", "evaluator"}:
    time.sleep(600)
while task["type"] == "chief" and len(list(Path(os.environ["FOLDER"]).glob("*-?.json"))) < 5:
    time.sleep(0.1)  # the job ends with its chief
"""
_DIES_ONCE = """
import os, signal
from pathlib import Path
mark = Path(os.environ["FOLDER"], "died")
if not mark.exists():
    mark.touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""

_TRAINS = """
import json, os, sys
import keras, numpy as np
from timonel.training import context
x = np.arange(64, dtype="float32").reshape(64, 1) / 64
model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
history = model.fit(x, 2 * x, batch_size=8, epochs=1)
job = context()
found = {
    "steps": int(model.optimizer.iterations.numpy()),
    "replicas": job.strategy.num_replicas_in_sync,
    "argv": sys.argv[1:],
    "level": os.environ.get("LEVEL"),
    "weights": [float(weight.sum()) for weight in model.get_weights()],
}
(job.job_dir / f"{job.cluster.task_id}.json").write_text(json.dumps(found))
"""
_MPI_JOB = """
apiVersion: kubeflow.org/v1
kind: MPIJob
metadata: {name: mpi}
spec:
  mpiReplicaSpecs:
    Launcher:
      template:
        spec:
          containers:
            - name: mpi
              image: x:1
              command: [mpirun, -np, "2", --allow-run-as-root, -x, LEVEL=3, -mca, btl, ^openib]
              args: [python, /app/train.py, --epochs=1]
    Worker:
      replicas: 2
      template: {spec: {containers: [{name: mpi, image: x:1}]}}
"""


@pytest.fixture
def start(jobs_workspace: Workspace, engine: BareEngine) -> Any:
    return functools.partial(train, workspace=jobs_workspace, on=engine, warm=False)


def manifest(folder: Path, script: str, restart: str = "Never", **counts: int) -> Path:
    """Write a script, and a manifest that runs it as ``/app/train.py``."""
    (folder / "train.py").write_text(script)
    specs = {}
    for name, count in counts.items():
        env = [{"name": "FOLDER", "value": str(folder)}, {"name": "LEVEL", "value": name}]
        command = ["python", "/app/train.py", f"--as={name}"]
        container = {"name": "tensorflow", "image": "x:1", "command": command, "env": env}
        template = {"spec": {"containers": [container]}}
        specs[name] = {"replicas": count, "restartPolicy": restart, "template": template}
    job = {"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "metadata": {"name": "mine"}}
    path = folder / "tfjob.yaml"
    path.write_text(yaml.safe_dump({**job, "spec": {"tfReplicaSpecs": specs}}))
    return path


def test_each_task_gets_tf_config_and_the_arguments_of_its_role(start: Any, tmp_path: Path) -> None:
    path = manifest(tmp_path, _WRITES, Chief=1, Worker=2, PS=1, Evaluator=1)
    run: Run = start(manifest=path)
    found = {each.stem: json.loads(each.read_text()) for each in tmp_path.glob("*-?.json")}
    assert found.keys() == {"chief-0", "worker-0", "worker-1", "ps-0", "evaluator-0"}
    sizes = {role: len(each) for role, each in found["ps-0"]["config"]["cluster"].items()}
    assert sizes == {"chief": 1, "worker": 2, "ps": 1}
    assert (found["worker-1"]["argv"], found["worker-1"]["level"]) == (["--as=Worker"], "Worker")
    assert (found["ps-0"]["argv"], found["ps-0"]["level"]) == (["--as=PS"], "PS")
    record = run.record
    assert (record.status, record.name, record.kind) == ("succeeded", "mine", "train")
    assert (record.folder / "source" / "train.py").read_text() == _WRITES


def test_all_workers_without_a_chief_have_no_chief_in_tf_config(start: Any, tmp_path: Path) -> None:
    start(manifest=manifest(tmp_path, _WRITES, Worker=2))
    found = json.loads((tmp_path / "worker-0.json").read_text())
    assert found["config"]["cluster"].keys() == {"worker"}


def test_an_error_of_the_program_fails_at_once(start: Any, tmp_path: Path) -> None:
    path = manifest(tmp_path, "raise ValueError('wrong')\n", "OnFailure", Worker=2)
    with pytest.raises(UserCodeError, match="ValueError: wrong"):
        start(manifest=path)


def test_a_killed_task_is_started_again(start: Any, tmp_path: Path) -> None:
    run: Run = start(manifest=manifest(tmp_path, _DIES_ONCE, "ExitCode", Worker=1))
    assert (run.record.status, run.job.status().restarts) == ("succeeded", 1)
    assert "generation 2" in log_of(run, "worker-0")


def test_a_killed_task_ends_a_job_that_never_restarts(start: Any, tmp_path: Path) -> None:
    with pytest.raises(JobError, match="signal 9"):
        start(manifest=manifest(tmp_path, _DIES_ONCE, "Never", Worker=1))


def test_quantization_has_a_model_and_no_manifest(start: Any, tmp_path: Path) -> None:
    path = manifest(tmp_path, _WRITES, Worker=1)
    with pytest.raises(SpecError, match="--file and --quantize-aware cannot be used"):
        start(manifest=path, quantize_aware="train-1")


def test_processes_of_an_mpi_job_train_one_model(start: Any, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(_TRAINS)
    path = tmp_path / "mpijob.yaml"
    path.write_text(_MPI_JOB)
    run: Run = start(manifest=path)
    found = results(run)
    assert found.keys() == {"worker-0", "worker-1"}
    assert found["worker-0"] == found["worker-1"]
    weights = found["worker-0"].pop("weights")
    # 64 rows in two processes with batches of 8 each.
    assert found["worker-0"] == {
        "steps": 4, "replicas": 2, "argv": ["--epochs=1"], "level": "3",
    }  # fmt: skip
    assert all(weights)
    assert (run.record.status, run.record.name) == ("succeeded", "mpi")

"""Strategies that a script creates in a job without one."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

PROGRAM = """
import json, os, tensorflow as tf
from timonel.errors import SpecError
from timonel.training.worker.strategy.strategies import check_own

found = []
check_own(os.environ)
os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": ["a:1", "b:1"]}})
for make in (
    lambda: tf.distribute.MirroredStrategy(["/gpu:0", "/gpu:1"]),
    lambda: tf.distribute.MirroredStrategy(devices=["GPU:0"]),
    lambda: tf.distribute.MirroredStrategy(["CPU:0"]).num_replicas_in_sync,
    lambda: tf.distribute.MirroredStrategy().num_replicas_in_sync,
    lambda: tf.distribute.MultiWorkerMirroredStrategy(),
    lambda: tf.distribute.experimental.MultiWorkerMirroredStrategy(),
    lambda: tf.distribute.ParameterServerStrategy(None),
):
    try:
        found.append(make())
    except SpecError as error:
        found.append(str(error))
del os.environ["TF_CONFIG"]
found.append(tf.distribute.MultiWorkerMirroredStrategy().num_replicas_in_sync)
print(json.dumps(found))
"""


@pytest.mark.process
def test_a_strategy_for_what_the_task_lacks_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert "on /gpu:0, but this task has 0 GPUs" in found[0]
    assert "on GPU:0, but this task has 0 GPUs" in found[1]
    assert found[2:4] == [1, 1]
    assert found[4] == found[5]
    assert "for the 2 tasks of its TF_CONFIG" in found[5]
    assert "--workers 2, or" in found[5]
    assert "--workers 2 --ps 1, or" in found[6]
    assert found[7:] == [1]

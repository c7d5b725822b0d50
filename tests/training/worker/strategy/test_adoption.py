"""Constructors of strategies in a job; in a process of its own, as they are changed for good."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import tensorflow as tf
from timonel.errors import SpecError
from timonel.training.settings import StrategyName
from timonel.training.worker.strategy.adoption import adopt

kind, maker = {kind!r}, {maker!r}
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
devices = ["CPU:0", "CPU:1"]
strategy = eval(maker)
adopt(strategy, StrategyName(kind))
found = []
for name in {names!r}:
    cls = eval("tf.distribute." + name)
    try:
        found.append(cls() is strategy)
    except SpecError as error:
        assert "--strategy none" in str(error) and kind in str(error), error
        assert f"creates a tf.distribute.{{name}}," in str(error), error
        found.append(False)
with strategy.scope(), tf.distribute.{own}().scope():
    variable = tf.Variable(1.0)
print(found, strategy.num_replicas_in_sync, len(strategy.experimental_local_results(variable)))
"""
NAMES = (
    "MirroredStrategy",
    "MultiWorkerMirroredStrategy",
    "experimental.MultiWorkerMirroredStrategy",
    "OneDeviceStrategy",
    "ParameterServerStrategy",
    "experimental.CentralStorageStrategy",
    "TPUStrategy",
)


def adopted(kind, maker, own):
    program = PROGRAM.format(kind=kind, maker=maker, names=NAMES, own=own)
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


def test_a_mirrored_strategy_is_the_jobs():
    told = adopted("mirrored", "tf.distribute.MirroredStrategy(devices)", "MirroredStrategy")
    assert told == f"{[name == 'MirroredStrategy' for name in NAMES]} 2 2"


def test_a_multi_worker_strategy_is_the_jobs_by_both_names():
    own = "MultiWorkerMirroredStrategy"
    told = adopted("multi-worker", f"tf.distribute.{own}()", own)
    assert told == f"{[name.endswith(own) for name in NAMES]} 1 1"

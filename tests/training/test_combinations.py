from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from timonel.errors import SpecError
from timonel.training.combinations import check_settings, choose
from timonel.training.settings import Settings


@pytest.mark.parametrize(
    ("wanted", "given", "chosen"),
    [
        ("auto", {}, "none"),
        ("auto", {"devices": 2}, "mirrored"),
        ("auto", {"workers": 2}, "multi-worker"),
        ("auto", {"workers": 2, "devices": 4}, "multi-worker"),
        ("auto", {"tpu": True}, "tpu"),
        ("auto", {"ps": 1, "workers": 2}, "parameter-server"),
        ("none", {"workers": 3}, "none"),
        ("mirrored", {}, "mirrored"),
        ("multi-worker", {}, "multi-worker"),
        ("one-device", {"devices": 2, "tpu": True}, "one-device"),
        ("central-storage", {"devices": 2}, "central-storage"),
    ],
)
def test_which_strategy_is_chosen(wanted: str, given: dict[str, Any], chosen: str) -> None:
    sizes: dict[str, Any] = {"workers": 1, "devices": 1, **given}
    assert choose(wanted, **sizes) == chosen


@pytest.mark.parametrize("strategy", ["one-device", "mirrored", "central-storage", "tpu"])
def test_what_needs_one_worker(strategy: str) -> None:
    with pytest.raises(SpecError, match=f"'{strategy}' runs in one worker, but --workers is 2"):
        check_settings(Settings.of({"strategy": strategy, "workers": 2}))


TWO_DEVICES = {"devices_per_worker": 2}
TWO_WORKERS = {"workers": 2}
SERVERS = {"strategy": "parameter-server", "workers": 2, "ps": 1}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"strategy": "none", "checkpoint_steps": 5}, "checkpoint"),
        ({"strategy": "none", "stop_on_nan": True}, "stop"),
        ({"keep_best": "val loss"}, "--keep-best needs a metric"),
        ({"cross_device_ops": "nccl"}, "only with the strategy 'mirrored', not with one device"),
        ({"cross_device_ops": "hierarchical", **TWO_WORKERS}, "not with 'multi-worker'"),
        ({"collectives": "ring"}, "--collectives works only with several workers, not with one"),
        ({"collectives": "nccl", **TWO_DEVICES}, "not with 'mirrored'"),
        ({"compress_gradients": "bfloat16"}, "--compress-gradients .* not with one device"),
        ({"compress_gradients": "float16", **SERVERS}, "not with 'parameter-server'"),
        ({"strategy": "central-storage", "compress_gradients": "float16"}, "central-storage"),
        ({"xla": True, **TWO_WORKERS}, "supports one replica only, not 'multi-worker'"),
        ({"xla": True, **TWO_DEVICES}, "not 'mirrored'"),
        ({"xla": True, "deterministic": True}, "--xla cannot be combined with --deterministic"),
        ({"strategy": "tpu", "precision": "float16"}, "a TPU does not support --precision float16"),
        (
            {"strategy": "central-storage", "precision": "float16"},
            "'central-storage' does not support",
        ),
        ({"accumulate_gradients": 2, **SERVERS}, "--accumulate-gradients cannot be combined"),
        ({"scale_learning_rate": "sqrt", **SERVERS}, "--scale-learning-rate cannot be combined"),
        ({"batch_size_is": "per-replica", **SERVERS}, "--batch-size-is cannot be combined"),
        ({"max_staleness": 2, **TWO_WORKERS}, "--max-staleness .*, not with 'multi"),
        ({"backup_workers": 0}, "--backup-workers .* not with one device"),
        ({"warmup_epochs": 1}, "--warmup-epochs .* not with one device"),
        ({"ps": 1, "strategy": "mirrored"}, "--ps works only with the strategy 'parameter-server'"),
        ({"strategy": "parameter-server"}, "needs servers, but --ps is 0"),
        ({"max_staleness": 2, "backup_workers": 1, **SERVERS}, "--max-staleness cannot be"),
        ({"backup_workers": 2, **SERVERS}, "--backup-workers 2 is not less than --workers 2"),
        ({"devices_per_worker": 2, **SERVERS}, "--devices-per-worker cannot be combined with"),
        ({"launcher": "mpi", **SERVERS}, "--launcher mpi does not support parameter servers"),
        (
            {"launcher": "mpi", "strategy": "none", "ps": 1},
            "mpi does not support parameter servers",
        ),
        ({"launcher": "mpi", "evaluator": True}, "--launcher mpi does not support an evaluator"),
        (
            {"launcher": "mpi", "workers": 4, "min_workers": 2},
            "mpi needs a fixed number of workers",
        ),
        ({"deterministic": True, **SERVERS}, "synchronous updates without backup workers"),
        ({"strategy": "none", "precision": "bfloat16"}, "--precision cannot be combined with"),
        ({"strategy": "none", "threads": 2}, "--threads cannot be combined with"),
        ({"strategy": "none", **TWO_DEVICES}, "--devices-per-worker cannot be"),
        ({"strategy": "none", "learning_rate_warmup": 5}, "--learning-rate-warmup"),
        ({"strategy": "none", "profile": "1:2"}, "--profile cannot be combined"),
        ({"profile": "1:2", **SERVERS}, "--profile cannot be combined with parameter"),
        ({"early_stopping": "val_loss"}, "but --evaluator is not set"),
        ({"early_stopping": "loss", "evaluator": True}, "needs a validation metric.*'loss'"),
        (
            {"strategy": "none", "early_stopping": "val_loss", "evaluator": True},
            "--early-stopping cannot be combined with",
        ),
        ({"keep_best": "best of all"}, "--keep-best needs a metric"),
        ({"profile": "7:2"}, "--profile needs a range.*'7:2'"),
    ],
)
def test_what_cannot_be_honoured_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        check_settings(Settings.of(given))
    assert caught.value.hint


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"cross_device_ops": "one-device", **TWO_DEVICES},
        {"collectives": "ring", **TWO_WORKERS},
        {"compress_gradients": "float16", **TWO_WORKERS},
        {"compress_gradients": "bfloat16", **TWO_DEVICES},
        {"xla": True},
        {"profile": "10:20", **TWO_WORKERS},
        {"xla": True, "strategy": "one-device"},
        {"evaluator": True, "early_stopping": "max:val_f1:5", "keep_best": "val_loss"},
        {"precision": "float16", "accumulate_gradients": 4, "learning_rate_warmup": 10},
        {"strategy": "none", "workers": 2},
        {"batch_size_is": "per-replica", "scale_learning_rate": "linear", **TWO_WORKERS},
        {"max_staleness": 0, "warmup_epochs": 2, "evaluator": True, **SERVERS},
        {"backup_workers": 0, "deterministic": True, **SERVERS},
        {"strategy": "none", "ps": 2, "workers": 2},
    ],
)
def test_what_goes_together(given: dict[str, Any]) -> None:
    check_settings(Settings.of(given))


PROGRAM = """
import numpy as np
import tensorflow as tf
from timonel.errors import SpecError
from timonel.training.worker.private import keras_fit
from timonel.training.worker.strategy.strategies import adopt

kind, maker = {kind!r}, {maker!r}
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
devices = ["CPU:0", "CPU:1"]
strategy = eval(maker)
adopt(strategy, kind)
found = []
for name in {names!r}:
    cls = eval("tf.distribute." + name)
    try:
        found.append(cls() is strategy)
    except SpecError as error:
        assert "train with --" in str(error) and kind in str(error), error
        assert f"creates a tf.distribute.{{name}}," in str(error), error
        found.append(False)
keras_fit.make_variables_numbers()
keras_fit.keep_scope_when_cleared(lambda: None)
with strategy.scope(), tf.distribute.{own}().scope():
    tf.compat.v1.reset_default_graph()  # as clear_session does
    assert tf.distribute.get_strategy() is strategy
    variable = tf.Variable(1.0)
assert not tf.distribute.has_strategy()
assert (float(variable), int(variable)) == (1.0, 1)
assert np.array([variable, variable]).tolist() == [1.0, 1.0]
assert float(variable.assign_add(1.0)) == 2.0
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


@pytest.mark.process
def test_a_mirrored_strategy_is_the_jobs():
    told = adopted("mirrored", "tf.distribute.MirroredStrategy(devices)", "MirroredStrategy")
    assert told == f"{[name == 'MirroredStrategy' for name in NAMES]} 2 2"


@pytest.mark.process
def test_a_multi_worker_strategy_is_the_jobs_by_both_names():
    own = "MultiWorkerMirroredStrategy"
    told = adopted("multi-worker", f"tf.distribute.{own}()", own)
    assert told == f"{[name.endswith(own) for name in NAMES]} 1 1"

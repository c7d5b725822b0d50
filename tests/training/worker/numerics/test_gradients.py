"""Gradients, learning rate, precision and strategies inside both Kerases, on two logical devices.

Configured before TensorFlow initialises, each Keras runs in a child process of its own; the test
that it belongs to reads what the child has found.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.process

CHILD = Path(__file__).parent / "numerics_child.py"


@pytest.fixture(scope="module", params=["keras", "tf_keras"])
def found(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What one child has found of one Keras: starting one costs seconds."""
    return run_child(request.param, "all")


def run_child(*arguments: str) -> dict[str, Any]:
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, str(CHILD), *arguments],
        capture_output=True,
        text=True,
        timeout=200,
        env=environment,
        check=False,
        cwd=Path(__file__).parents[4],
    )
    assert done.returncode == 0, done.stderr[-3000:]
    value: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return value


@pytest.mark.parametrize("name", ["alone-sgd", "mirrored-clipped", "mirrored-adam_schedule"])
def test_k_batches_are_one_batch_k_times_as_large(name: str, found: dict[str, Any]) -> None:
    # Adam divides by roots of small numbers, which makes more of rounding.
    limit = 1e-6 if "adam" not in name else 1e-5
    case = found["accumulation"][name]
    assert case["moved"] > 1e-3
    assert case["difference"] < limit
    assert case["updates"] == [4, 4]


def test_replicas_train_as_one_process_with_clipped_gradients(found: dict[str, Any]) -> None:
    assert found["clipped"] < 1e-6


def test_an_optimizer_is_built_in_the_step_of_two_devices(found: dict[str, Any]) -> None:
    assert found["unbuilt"] < 1e-6


def test_central_storage_trains_as_one_process(found: dict[str, Any]) -> None:
    assert set(found["central_storage"]) == {"weights", "loss", "accuracy"}
    assert max(found["central_storage"].values()) < 1e-6


@pytest.mark.parametrize(("kind", "limit"), [("bfloat16", 2e-3), ("float16", 2e-4)])
def test_compressed_gradients(kind: str, limit: float, found: dict[str, Any]) -> None:
    case = found["compression"][kind]
    assert 0 < case["difference"] < limit
    assert case["types"] == [kind]


def test_float16_neither_overflows_nor_loses_small_gradients(found: dict[str, Any]) -> None:
    sums = found["float16"]
    assert sums["large"] == pytest.approx([2e30, 4e-3 * 1e30], rel=1e-3)
    assert sums["small"] == pytest.approx([2e-20], rel=1e-3)
    assert sums["zero"] == [0.0]
    assert sums["broken"] == ["nan", "inf"]
    assert sums["slices"] == pytest.approx([3.0, 1.0])


def test_large_gradients_travel_alone_and_small_ones_together(found: dict[str, Any]) -> None:
    messages = found["messages"]
    # A message takes values until it holds more bytes than that: with one byte each has its own.
    assert messages["sent"] == [[1, 2**18, 2**19], [2**22, 1, 3, 5]]
    assert messages["sums"] == [2.0**19, 2.0, 2.0**20, 6.0, 2.0]


def test_hooks_see_the_gradients_of_each_replica(found: dict[str, Any]) -> None:
    assert found["hooks"] == {"before": 2, "after": 2}


def test_the_learning_rate_is_scaled_while_updating_only(found: dict[str, Any]) -> None:
    case = found["learning_rate"]
    # Updates of plain SGD with gradients of one: what each has taken off.
    assert case["steps"] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4], rel=1e-5)
    assert case["seen"] == pytest.approx(0.1)
    assert case["told"] == pytest.approx(0.4)
    assert case["resumed"] == pytest.approx(0.3, rel=1e-5)
    # A callback halves what it sees: the rate of updates is halved.
    assert case["after_callback"] == pytest.approx(0.2)
    assert case["schedule"] == pytest.approx([0.1, 0.1, 0.15 * 0.5], rel=1e-5)


def test_a_loss_in_float16_is_scaled(found: dict[str, Any]) -> None:
    case = found["float16_policy"]
    assert case["optimizer"].startswith("LossScaleOptimizer")
    assert case["policy"] == "mixed_float16"
    assert case["difference"] < 0.02
    # One replica's overflow costs all of them this update, and nothing else.
    assert case["overflow"] == {"moved": False, "halved": True}


def test_a_policy_of_the_script_wins_with_a_warning(found: dict[str, Any]) -> None:
    assert found["own_policy"]["policy"] == found["own_policy"]["layers"] == "mixed_bfloat16"
    assert "the script sets the precision policy mixed_bfloat16" in found["own_policy"]["log"]


def test_xla_compiles_fit(found: dict[str, Any]) -> None:
    assert found["xla"]["compiled"]
    assert found["xla"]["difference"] < 1e-5


def test_what_cannot_be_honoured_is_an_error(found: dict[str, Any]) -> None:
    refused = found["refused"]
    assert "--xla cannot compile a model that runs eagerly" in refused["eager"]
    assert (
        "the job's options for gradients and the learning rate do not apply to builtins.object"
        in refused["optimizer"]
    )
    assert "--batch-size-is per-replica does not work with a generator" in (refused["generator"])
    assert "whose batch size is known" in refused["unbatched"]
    assert "initialized before the job could configure" in refused["late"]
    assert "cannot limit device memory" in refused["memory"]
    assert "--cross-device-ops nccl needs GPUs" in refused["nccl"]
    assert "--collectives nccl needs GPUs" in refused["collectives"]
    assert "the strategy 'tpu' found no TPU" in refused["tpu"]


def test_batch_sizes_per_replica(found: dict[str, Any]) -> None:
    assert found["batches"] == {"arrays": 64, "default": 96, "dataset": 12, "partial": True}


def test_devices_are_set_before_tensorflow_initialises(found: dict[str, Any]) -> None:
    assert found["devices"]["names"] == ["CPU:0", "CPU:1"]
    assert found["devices"]["logical"] == 2
    assert found["devices"]["threads"] == found["devices"]["granted"] == 1


def test_a_batch_with_fewer_rows_than_replicas_trains(found: dict[str, Any]) -> None:
    assert found["uneven"] == "finite"


@pytest.mark.soak
def test_without_its_replicas_filled_tensorflow_would_fail() -> None:
    done = subprocess.run(
        [sys.executable, str(CHILD), "keras", "abort"],
        capture_output=True,
        text=True,
        timeout=200,
        # oneDNN's kernels, which TensorFlow takes of itself where a CPU has AVX-512 (or is an Arm).
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "1"},
        check=False,
        cwd=Path(__file__).parents[4],
    )
    # The reason why inputs are dealt out by ourselves: with these kernels a convolution without
    # rows is an error, or ends the process by SIGABRT.
    assert done.returncode in {1, -signal.SIGABRT}
    assert done.returncode < 0 or "successful operations" in done.stderr

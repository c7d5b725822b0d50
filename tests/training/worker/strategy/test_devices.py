from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timonel.errors import SpecError
from timonel.training.worker.strategy import devices
from timonel.training.worker.strategy.devices import assign_gpus, threads


@given(st.integers(1, 8), st.integers(1, 8), st.integers(0, 8))
def test_gpus_are_dealt_out_once_each(per_worker: int, neighbours: int, spare: int) -> None:
    count = per_worker * neighbours + spare
    dealt = [
        number
        for place in range(neighbours)
        for number in assign_gpus(count, per_worker=per_worker, place=place, neighbours=neighbours)
    ]
    assert dealt == list(range(per_worker * neighbours))


def test_too_few_gpus() -> None:
    with pytest.raises(SpecError, match="2 processes need 4 GPUs, this machine has 3"):
        assign_gpus(3, per_worker=2, place=0, neighbours=2)


@pytest.mark.parametrize(
    ("cores", "neighbours", "wanted", "count"),
    [
        (8, 1, None, 8),
        (8, 2, None, 4),
        (2, 2, None, 1),
        (2, 4, None, 1),
        (3.5, 1, None, 3),
        (0.5, 1, None, 1),
        (8, 2, 6, 6),
    ],
)
def test_processes_share_the_cores(
    cores: float, neighbours: int, wanted: int | None, count: int
) -> None:
    assert threads(cores, neighbours, wanted) == count


def test_a_tpu_is_looked_for_without_a_network(tmp_path: Path) -> None:
    assert devices.tpu_address({}, tmp_path) is None
    assert devices.tpu_address({"TPU_NAME": "mine"}, tmp_path) == "mine"
    (tmp_path / "accel0").touch()
    assert devices.tpu_address({}, tmp_path) == "local"


class FakeConfig:
    """What an evaluator asks of ``tf.config`` on a host with so many GPUs."""

    def __init__(self, gpus: int) -> None:
        self.gpus = [SimpleNamespace(name=f"GPU:{number}") for number in range(gpus)]
        self.visible: list[str] | None = None
        self.grows: list[str] = []
        self.parts = 1
        self.experimental = SimpleNamespace(set_memory_growth=self._grow)
        self.threading = SimpleNamespace(
            set_intra_op_parallelism_threads=lambda count: None,
            set_inter_op_parallelism_threads=lambda count: None,
        )

    def list_physical_devices(self, kind: str) -> list[SimpleNamespace]:
        return self.gpus if kind == "GPU" else [SimpleNamespace(name="CPU:0")]

    def set_visible_devices(self, found: list[SimpleNamespace], kind: str) -> None:
        assert kind == "GPU"
        self.visible = [gpu.name for gpu in found]

    def set_logical_device_configuration(self, _: object, parts: list[object]) -> None:
        self.parts = len(parts)

    def set_soft_device_placement(self, wanted: bool) -> None:
        assert wanted

    def LogicalDeviceConfiguration(self) -> object:  # noqa: N802 - TensorFlow's name
        return object()

    def _grow(self, gpu: SimpleNamespace, wanted: bool) -> None:
        self.grows += [gpu.name] * wanted


@pytest.mark.parametrize(
    ("gpus", "per_worker", "neighbours", "expected"),
    [
        (0, 1, 2, []),
        (2, 1, 2, []),  # all of them train
        (3, 1, 2, ["GPU:2"]),
        (8, 2, 2, ["GPU:7"]),
    ],
)
def test_an_evaluator_takes_the_last_gpu_if_trainers_leave_one(
    gpus: int,
    per_worker: int,
    neighbours: int,
    expected: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = FakeConfig(gpus)
    monkeypatch.setitem(sys.modules, "tensorflow", SimpleNamespace(config=config))
    for name in devices._THREAD_VARIABLES:
        monkeypatch.setenv(name, "1")
    granted = devices.configure_evaluator(
        devices.HostPosition(0, neighbours), per_worker=per_worker, requested_threads=None
    )
    assert (config.visible, config.grows) == (expected, expected)
    assert granted.kind == ("GPU" if expected else "CPU")
    # Layers that the script places by name find their devices.
    assert config.parts == (1 if expected else per_worker)


def test_a_script_that_configures_devices_goes_on_or_is_told_why_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def change(*_: object) -> None:
        raise RuntimeError("cannot be modified after initialization")

    def same(*_: object) -> str:
        return "same"

    assert devices._kept(False, change, 1) is None
    assert "change in the script has no effect" in caplog.text
    with pytest.raises(SpecError, match=r"calls change, but .* --devices-per-worker"):
        devices._kept(True, change, [], "GPU")
    assert devices._kept(True, same) == "same"

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timonel.errors import SpecError
from timonel.training.worker import devices
from timonel.training.worker.devices import deal, threads, usable_cores


@given(st.integers(1, 8), st.integers(1, 8), st.integers(0, 8))
def test_gpus_are_dealt_out_once_each(per_worker: int, neighbours: int, spare: int) -> None:
    count = per_worker * neighbours + spare
    dealt = [
        number
        for place in range(neighbours)
        for number in deal(count, per_worker=per_worker, place=place, neighbours=neighbours)
    ]
    assert dealt == list(range(per_worker * neighbours))


def test_too_few_gpus() -> None:
    with pytest.raises(SpecError, match="expected 4 GPUs for 2 processes, found 3"):
        deal(3, per_worker=2, place=0, neighbours=2)


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


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"cpu.max": "150000 100000"}, 1.5),
        ({"cpu.max": "max 100000"}, None),
        ({"cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000"}, 0.5),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ({}, None),
    ],
)
def test_the_control_groups_share_of_the_cores(
    files: dict[str, str], expected: float | None, tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    present = len(os.sched_getaffinity(0))
    assert usable_cores(tmp_path) == (present if expected is None else min(expected, present))


def test_a_tpu_is_looked_for_without_a_network(tmp_path: Path) -> None:
    assert devices.tpu_address({}, tmp_path) is None
    assert devices.tpu_address({"TPU_NAME": "mine"}, tmp_path) == "mine"
    (tmp_path / "accel0").touch()
    assert devices.tpu_address({}, tmp_path) == "local"

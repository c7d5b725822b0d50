"""Shares of cores and GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timonel.tuning.shares import gpus_of_slot, threads_per_process, visible_gpus


@given(st.floats(0.1, 256), st.integers(1, 64), st.integers(1, 8))
def test_trials_together_use_no_more_than_the_cores(
    cores: float, parallel: int, processes: int
) -> None:
    threads = threads_per_process(cores, parallel, processes)
    assert threads >= 1
    assert threads == 1 or threads * parallel * processes <= cores


@given(st.integers(0, 16), st.integers(1, 16))
def test_slots_get_equal_numbers_of_gpus(count: int, parallel: int) -> None:
    gpus = [str(number) for number in range(count)]
    shares = [gpus_of_slot(gpus, slot, parallel) for slot in range(parallel)]
    assert len({len(share) for share in shares}) == 1
    if count >= parallel:
        used = [gpu for share in shares for gpu in share]
        assert len(set(used)) == len(used)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"CUDA_VISIBLE_DEVICES": "2,GPU-ab"}, ("2", "GPU-ab")),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, ()),
        ({"CUDA_VISIBLE_DEVICES": ""}, ()),
        ({}, ("0", "1")),
    ],
)
def test_the_environment_names_the_gpus(
    environ: dict[str, str], expected: tuple[str, ...], tmp_path: Path
) -> None:
    for bus in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / bus).mkdir()
    assert visible_gpus(environ, tmp_path) == expected


def test_a_machine_without_a_driver_has_no_gpus(tmp_path: Path) -> None:
    assert visible_gpus({}, tmp_path / "absent") == ()

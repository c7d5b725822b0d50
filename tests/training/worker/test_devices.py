from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timonel.errors import SpecError
from timonel.training.settings import StrategyName
from timonel.training.worker.devices import deal, threads
from timonel.training.worker.strategies import choose


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
    ("cores", "neighbours", "count"), [(8, 1, None), (8, 2, 4), (2, 2, 1), (2, 4, 1)]
)
def test_processes_share_the_cores(cores: int, neighbours: int, count: int | None) -> None:
    assert threads(cores, neighbours) == count


@pytest.mark.parametrize(
    ("wanted", "workers", "devices", "chosen"),
    [
        ("auto", 1, 1, "none"),
        ("auto", 1, 2, "mirrored"),
        ("auto", 2, 1, "multi-worker"),
        ("auto", 2, 4, "multi-worker"),
        ("none", 3, 1, "none"),
        ("mirrored", 1, 1, "mirrored"),
        ("multi-worker", 1, 1, "multi-worker"),
    ],
)
def test_which_strategy_is_chosen(wanted: str, workers: int, devices: int, chosen: str) -> None:
    assert choose(StrategyName(wanted), workers=workers, devices=devices) == chosen

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timonel.training.settings import Settings
from timonel.training.worker.numerics.learning_rate import RateScaling, describe, rule_of


def rule_for(scaling: str, replicas: int, warmup: int = 0) -> RateScaling:
    options = {"scale_learning_rate": scaling, "learning_rate_warmup": warmup}
    return rule_of(Settings.of(options), replicas)


@given(st.integers(1, 64), st.integers(0, 100), st.integers(0, 300))
def test_the_factor_grows_evenly_to_its_value(replicas: int, warmup: int, updates: int) -> None:
    used = rule_for("linear", replicas, warmup)
    now, later = used.factor(updates), used.factor(updates + 1)
    assert 0 < now <= later <= replicas
    assert used.factor(warmup) == replicas
    if updates + 1 < warmup:
        assert later - now == pytest.approx(replicas / warmup)


@pytest.mark.parametrize(
    ("name", "expected"), [("none", 1.0), ("linear", 4.0), ("sqrt", math.sqrt(4))]
)
def test_the_scale_follows_the_replicas(name, expected: float) -> None:
    used = rule_for(name, 4)
    assert used.factor(0) == used.factor(1000) == expected
    assert used.changes_nothing == (name == "none")


def test_what_becomes_of_it_is_said() -> None:
    words = describe(rule_for("sqrt", 4, 10), "sqrt", 4)
    assert "multiplied by 2 (sqrt, 4 replicas) and warms up over 10 updates" in words
    assert not RateScaling(1.0, 10).changes_nothing

"""When state is saved, what is the best of it, and what is said when memory does not do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timonel.engines.agent.agent import OOM_REPORT
from timonel.engines.base import FailureCause
from timonel.engines.coordination.failures import parse_report
from timonel.errors import TimonelError
from timonel.training.settings import CheckpointPolicy
from timonel.training.worker.fit.watch import Losses
from timonel.training.worker.state import memory
from timonel.training.worker.state.checkpoint_format import Progress
from timonel.training.worker.state.checkpoint_writer import Due


@given(st.integers(1, 50), st.integers(0, 200), st.integers(1, 60))
def test_steps_are_due_when_a_multiple_is_passed(every: int, before: int, more: int) -> None:
    due = Due(CheckpointPolicy(checkpoint_steps=every))
    passed = any(step % every == 0 for step in range(before + 1, before + more + 1))
    assert due.by_steps(before, before + more) == passed


def test_seconds_are_due_since_the_last_one() -> None:
    now = [0.0]
    due = Due(CheckpointPolicy(checkpoint_seconds=10), clock=lambda: now[0])
    now[0] = 9.0
    assert not due.by_clock()
    now[0] = 10.0
    assert due.by_clock()
    due.saved()
    assert not due.by_clock()
    assert not Due(CheckpointPolicy()).by_clock()
    assert not Due(CheckpointPolicy()).by_steps(0, 100)


def test_steps_within_an_epoch_are_counted_once() -> None:
    progress = Progress((0,), {}, 10).within(3).within(7)
    assert (progress.step, progress.steps, progress.steps_before_epoch) == (7, 17, 10)
    assert progress.after(1, {}, 20).step == 0


@pytest.mark.parametrize(
    ("batch", "replicas", "said"),
    [(512, 1, "try 256"), (96, 4, "try 48"), (20, 4, "try 8"), (4, 4, None), (1, 1, None)],
)
def test_a_smaller_batch_is_proposed(batch: int, replicas: int, said: str | None) -> None:
    advice = memory.advice(batch, replicas)
    assert advice is None if said is None else said in str(advice)


def test_only_a_lack_of_memory_is_explained() -> None:
    with pytest.raises(MemoryError) as caught, memory.explained(64, 2):
        raise MemoryError
    assert caught.value.__notes__ == ["the batch size was 64: try 32"]
    with pytest.raises(ValueError, match="x") as other, memory.explained(64, 2):
        raise ValueError("x")
    assert not hasattr(other.value, "__notes__")


def test_the_first_loss_that_is_no_number_is_named() -> None:
    losses = Losses(ends_job=True)
    losses.note(1, 1, 0.5)
    assert not losses.must_fail()
    for step, loss in [(2, 0.4), (3, float("nan")), (4, float("nan"))]:
        losses.note(1, step, loss)
    assert losses.must_fail()
    with pytest.raises(
        TimonelError, match=re.escape("NaN or infinite at epoch 2, step 3; no checkpoint")
    ):
        losses.fail(None)
    ignoring = Losses()
    ignoring.note(0, 1, float("nan"))
    assert not ignoring.must_fail()


def test_who_is_killed_for_want_of_memory_has_said_before_what_to_try(tmp_path: Path) -> None:
    words = tmp_path / OOM_REPORT
    with memory.explained(64, 2, words):
        report = parse_report(words.read_text())
    assert report is not None
    assert report.cause is FailureCause.OUT_OF_MEMORY
    assert report.message.endswith("the batch size was 64: try 32")
    assert not words.exists()
    with memory.explained(None, 1, words):
        assert not words.exists()

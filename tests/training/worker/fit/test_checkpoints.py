from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.training.worker.fakes import Variable
from timonel.engines.agent.heartbeat import RESTING, read_progress, steps_of
from timonel.errors import TimonelError
from timonel.storage.atomic import aside_name
from timonel.training.worker.fit.checkpoints import Checkpoints, FitState, Progress
from timonel.training.worker.state.variables import StrategyReplicas


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path / "checkpoints", writes=True, progress=tmp_path / "progress")


def save(checkpoints: Checkpoints, fit: int, values: list[Any], progress: Progress) -> Path | None:
    folder = checkpoints.save(fit, FitState(progress, [np.asarray(value) for value in values]))
    checkpoints.wait()
    return folder


def after(epochs: int) -> Progress:
    progress = Progress()
    for epoch in range(epochs):
        progress = progress.after(epoch, {"loss": 1.0 / (epoch + 1)}, steps=10 * (epoch + 1))
    return progress


def test_what_is_saved_comes_back(checkpoints: Checkpoints) -> None:
    values = [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.array(7, np.int64),
        np.ones(3, ml_dtypes.bfloat16),
        np.array([True, False]),
    ]
    folder = save(checkpoints, 0, values, after(2))
    found = checkpoints.latest(0)
    assert found is not None
    assert found.folder == folder
    assert found.progress.epochs == (0, 1)
    assert found.progress.next_epoch == 2
    assert list(found.progress.history["loss"]) == [1.0, 0.5]
    others = [Variable(np.zeros_like(value)) for value in values]
    StrategyReplicas(None).restore(others, found.state.variables)
    for variable, value in zip(others, values, strict=True):
        assert variable.numpy().dtype == value.dtype
        assert np.array_equal(variable.numpy(), value)


def test_the_engine_is_told_of_each_step(checkpoints: Checkpoints, tmp_path: Path) -> None:
    for steps in (9, 10, 8):
        checkpoints.note_steps(steps)
        assert steps_of(read_progress(tmp_path)) == steps
    checkpoints.note_steps(11, resting=True)
    assert (read_progress(tmp_path) or "").split() == ["11", RESTING]


def test_only_the_newest_are_kept(checkpoints: Checkpoints) -> None:
    for epochs in range(1, 6):
        save(checkpoints, 0, [epochs], after(epochs))
    save(checkpoints, 1, [0], after(1))
    names = sorted(path.name for path in (checkpoints.root / "fit-000").iterdir())
    assert names == ["epoch-0004", "epoch-0005"]
    assert len(names) == checkpoints.policy.keep_checkpoints
    save(checkpoints, 0, [9], after(5).as_finished())
    found = checkpoints.latest(0)
    assert found is not None
    assert found.progress.finished
    assert found.state.variables[0] == 9


@pytest.mark.parametrize("damage", ["arrays.bin", "state.json"])
def test_one_that_is_damaged_is_left_aside(
    checkpoints: Checkpoints, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    save(checkpoints, 0, [1], after(1))
    folder = save(checkpoints, 0, [2], after(2))
    assert folder is not None
    content = (folder / damage).read_bytes()
    (folder / damage).write_bytes(content[: len(content) // 2])
    with caplog.at_level(logging.WARNING):
        found = checkpoints.latest(0)
    assert found is not None
    assert found.progress.next_epoch == 1
    assert "ignoring the checkpoint" in caplog.text


def test_there_is_none(checkpoints: Checkpoints) -> None:
    assert checkpoints.latest(0) is None


def test_a_task_that_does_not_lead_writes_nothing(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "c", writes=False, progress=tmp_path / "progress")
    assert save(checkpoints, 0, [1], after(1)) is None
    assert not (tmp_path / "c").exists()


@pytest.mark.process
@pytest.mark.parametrize("other", [[], [np.zeros(2)], [np.zeros(3, np.float16)]])
def test_another_model_is_refused(other: list[np.ndarray]) -> None:
    with pytest.raises(TimonelError, match="model differs from the checkpoint"):
        StrategyReplicas(None).restore([Variable(value) for value in other], [np.zeros(3)])


@given(
    st.lists(
        st.dictionaries(st.sampled_from(["loss", "accuracy", "val_loss"]), st.floats()), max_size=6
    )
)
def test_history_grows_as_keras_history_does(epochs: list[dict[str, float]]) -> None:
    progress, expected = Progress(), {}
    for epoch, logs in enumerate(epochs):
        progress = progress.after(epoch, logs, steps=epoch)
        for name, value in logs.items():
            expected.setdefault(name, []).append(value)
    assert repr({name: list(values) for name, values in progress.history.items()}) == repr(expected)
    assert progress.next_epoch == len(epochs)


def test_what_a_killed_chief_left_half_written_is_removed(checkpoints: Checkpoints) -> None:
    save(checkpoints, 0, [1], after(1))
    folder = checkpoints.root / "fit-000"
    writer = os.fork()
    if writer == 0:
        (folder / aside_name("epoch-0002")).mkdir()
        os._exit(0)
    os.waitpid(writer, 0)
    assert len(list(folder.iterdir())) == 2
    other = Checkpoints(checkpoints.root, writes=False, progress=checkpoints.root / "progress")
    other.tidy()
    assert len(list(folder.iterdir())) == 2
    checkpoints.tidy()
    assert [path.name for path in folder.iterdir()] == ["epoch-0001"]

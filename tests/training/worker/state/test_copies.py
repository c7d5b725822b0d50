from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from timonel.errors import InputError
from timonel.storage import remote
from timonel.training.settings import CheckpointPolicy
from timonel.training.worker.fit.checkpoints import Checkpoints
from timonel.training.worker.state import copies
from timonel.training.worker.state.checkpoint_format import FitState, Progress

Make = Callable[[str], Checkpoints]


@pytest.fixture
def uri() -> str:
    return f"memory://copies-{uuid.uuid4().hex}"


@pytest.fixture
def machine(tmp_path: Path, uri: str) -> Make:
    """Make the checkpoints of one job on a machine of that name, with a folder of its own."""

    def make(name: str) -> Checkpoints:
        (tmp_path / name).mkdir()
        policy = CheckpointPolicy(checkpoint_uri=uri)
        place = tmp_path / name
        return Checkpoints(
            place / "checkpoints", writes=True, progress=place / "progress", policy=policy
        )

    return make


def save(checkpoints: Checkpoints, *, epochs: int, fit: int = 0) -> None:
    progress = Progress()
    for epoch in range(epochs):
        progress = progress.after(epoch, {"loss": 1.0}, steps=epoch + 1)
    checkpoints.save(fit, FitState(progress, [np.full(3, epochs)]))


def names_at(uri: str, call: str = "fit-000") -> list[str]:
    fs, root = fsspec.core.url_to_fs(uri)
    return sorted(path.rsplit("/", 2)[-2] for path in fs.glob(f"{root}/{call}/*/state.json"))


def test_what_is_kept_is_there_and_nothing_else(machine: Make, uri: str) -> None:
    checkpoints = machine("a")
    for epochs in range(1, 5):
        save(checkpoints, epochs=epochs)
        checkpoints.wait()
    assert names_at(uri) == ["epoch-0003", "epoch-0004"]


def test_another_machine_has_those_of_fit_calls_and_of_loops(machine: Make, uri: str) -> None:
    first = machine("a")
    loops = first.beside("loops")
    for each, epochs in ((first, 2), (loops, 3)):
        save(each, epochs=epochs)
        each.wait()
    second = machine("b")
    second.fill()
    found, looped = second.latest(0), second.beside("loops").latest(0)
    assert found is not None
    assert looped is not None
    assert (found.progress.next_epoch, looped.progress.next_epoch) == (2, 3)
    assert not list(second.root.parent.glob(".tmp-*"))


def test_a_fetch_that_breaks_off_leaves_nothing(
    machine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = machine("a")
    for fit in (0, 1):
        save(first, epochs=1, fit=fit)
    first.wait()
    fetch, second = remote.fetch, machine("b")

    def broken(place: str, target: Path) -> None:
        if "fit-001" in place:
            raise InputError("expected to read, got a refusal")
        fetch(place, target)

    monkeypatch.setattr(remote, "fetch", broken)
    with pytest.raises(InputError):
        second.fill()
    assert second.latest(0) is None
    monkeypatch.setattr(remote, "fetch", fetch)
    second.fill()
    assert second.latest(0) is not None
    assert second.latest(1) is not None


def test_a_bucket_that_refuses_for_a_while(
    machine: Make, uri: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    publish, checkpoints = remote.publish, machine("a")

    def refuse(*_: Any, **__: Any) -> None:
        raise InputError("expected to write, got a refusal")

    monkeypatch.setattr(remote, "publish", refuse)
    with caplog.at_level(logging.WARNING):
        save(checkpoints, epochs=1)
        checkpoints.wait()
    assert "Could not copy epoch-0001. Training continues. expected to write" in caplog.text
    assert names_at(uri) == []
    monkeypatch.setattr(remote, "publish", publish)
    save(checkpoints, epochs=2)
    checkpoints.wait()
    # The one that was refused is kept still, so it is brought too.
    assert names_at(uri) == ["epoch-0001", "epoch-0002"]


def test_a_bucket_that_hangs_holds_nothing_up(
    machine: Make, uri: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    publish, checkpoints, lets_go = remote.publish, machine("a"), threading.Event()

    def hang(*args: Any, **named: Any) -> None:
        lets_go.wait(30)
        publish(*args, **named)

    monkeypatch.setattr(remote, "publish", hang)
    monkeypatch.setattr(copies, "_LONG_S", 0.0)
    begun = time.monotonic()
    with caplog.at_level(logging.WARNING):
        for epochs in range(1, 6):
            save(checkpoints, epochs=epochs)
        checkpoints._copies.wait(0.1)
        checkpoints._copies.wait(20.0)  # given up already: it waits no second time
    assert time.monotonic() - begun < 10
    found = checkpoints.latest(0)
    assert found is not None
    assert found.progress.next_epoch == 5
    assert "so far. Training continues" in caplog.text
    assert caplog.text.count("The newest checkpoint was not copied") == 1
    lets_go.set()
    deadline = time.monotonic() + 20
    while names_at(uri) != ["epoch-0004", "epoch-0005"] and time.monotonic() < deadline:
        time.sleep(0.02)
    assert names_at(uri) == ["epoch-0004", "epoch-0005"]


def test_what_an_earlier_process_has_copied_is_not_copied_again(
    machine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = machine("a")
    save(first, epochs=1)
    first.wait()
    made: list[str] = []
    publish = remote.publish

    def note(folder: Path, *args: Any, **named: Any) -> None:
        made.append(folder.name)
        publish(folder, *args, **named)

    monkeypatch.setattr(remote, "publish", note)
    again = Checkpoints(
        first.root, writes=True, progress=first.root / "progress", policy=first.policy
    )
    save(again, epochs=2)
    again.wait()
    assert made == ["epoch-0002"]

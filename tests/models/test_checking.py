"""The check's process: what it says when it fails, and that it never outlives its parent's wish."""

from __future__ import annotations

import signal
from pathlib import Path
from types import FrameType

import psutil
import pytest

from timonel.errors import ModelError
from timonel.models import checking, child
from timonel.models.check import Request


def executable(path: Path, body: str) -> str:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def request(folder: Path) -> Request:
    return Request(saved_model=folder, reference=folder / "r", input_kind="image", output="scores")


def test_a_process_that_dies_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = executable(tmp_path / "python", "echo loading >&2; echo out of memory >&2; kill -9 $$")
    monkeypatch.setattr(child.sys, "executable", python)
    with pytest.raises(ModelError, match="ended with code -9") as raised:
        checking._ask(request(tmp_path), None)
    assert str(raised.value).endswith("out of memory")


@pytest.fixture
def others() -> list[psutil.Process]:
    """The children that this process has anyway, of other tests."""
    return psutil.Process().children()


def test_a_process_that_hangs_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: list[psutil.Process]
) -> None:
    python = executable(tmp_path / "python", "exec sleep 60")
    monkeypatch.setattr(child.sys, "executable", python)
    monkeypatch.setattr(checking, "_TIMEOUT_S", 0.2)
    with pytest.raises(ModelError, match="to answer within"):
        checking._ask(request(tmp_path), tmp_path / "log")
    assert set(psutil.Process().children()) <= set(others)


def test_ctrl_c_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: list[psutil.Process]
) -> None:
    python = executable(tmp_path / "python", "exec sleep 60")
    monkeypatch.setattr(child.sys, "executable", python)

    def interrupt(_: int, __: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(KeyboardInterrupt):
            checking._ask(request(tmp_path), tmp_path / "log")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert set(psutil.Process().children()) <= set(others)

"""Zygotes by themselves: what they fork, what they tell about it, and when they end."""

from __future__ import annotations

import os
import signal
import socket
import textwrap
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.engines.local.conftest import zygotes
from tests.waiting import until
from timonel.processes.zygote import ForkedChild, ZygoteError
from timonel.processes.zygote_client import LINGER, ensure_zygote, request_child

pytestmark = [
    pytest.mark.process,
    # A zygote outlives the code that starts it.
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
]

PRELOAD = ("children",)
CHILDREN = """
    import os

    def wait(connection):
        os.chdir("/")  # by which it differs from the zygote
        connection.send(str(os.getppid()).encode())
        os._exit(len(connection.recv(100)))

    def fail(connection):
        raise ValueError("a defect")

    def finish(connection):
        pass
"""


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of modules that a zygote finds; its zygotes end with the test."""
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "children.py").write_text(textwrap.dedent(CHILDREN))
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    yield folder
    for pid in zygotes(tmp_path):
        os.kill(pid, signal.SIGKILL)
    until(lambda: not zygotes(tmp_path))


def request(entry: str = "children:wait") -> tuple[ForkedChild, socket.socket]:
    """Request a child; return it and the connection to it."""
    own_end, child_end = socket.socketpair()
    with child_end:
        ensure_zygote(PRELOAD, os.environ)
        child = request_child(PRELOAD, os.environ, child_end, entry, {})
    return child, own_end


def refusal() -> str:
    child, own_end = request()
    with own_end, pytest.raises(ZygoteError) as caught:
        child.wait_for_pid(60)
    child.close()
    return str(caught.value)


def test_one_zygote_forks_all_children_and_tells_how_they_ended(
    modules: Path, tmp_path: Path
) -> None:
    (first, first_end), (second, second_end), (failed, failed_end) = (
        request(),
        request(),
        request("children:fail"),
    )
    for child in (first, second, failed):
        assert child.wait_for_pid(60) is not None
    assert os.waitstatus_to_exitcode(failed.wait(60) or 0) == 1
    pids = {int(first_end.recv(10)), int(second_end.recv(10))}
    assert pids == set(zygotes(tmp_path))
    assert len(pids) == 1
    assert first.wait(0) is None
    first_end.send(b"xxx")
    assert os.waitstatus_to_exitcode(first.wait(60) or 0) == 3
    second.kill()
    assert os.waitstatus_to_exitcode(second.wait(60) or 0) == -signal.SIGKILL
    (log,) = (tmp_path / "timonel").glob("*.log")
    assert "ValueError: a defect" in log.read_text()
    for child, own_end in ((first, first_end), (second, second_end), (failed, failed_end)):
        child.close()
        own_end.close()


def test_children_do_not_hide_the_zygotes_end_from_each_other(
    modules: Path, tmp_path: Path
) -> None:
    children = [request() for _ in range(3)]
    for child, own_end in children:
        assert child.wait_for_pid(60) is not None
        assert own_end.recv(10)
    (zygote,) = zygotes(tmp_path)
    os.kill(zygote, signal.SIGKILL)
    for child, own_end in children:
        with pytest.raises(ZygoteError, match="the zygote ended"):
            child.wait(60)
        child.close()
        own_end.close()


def test_a_stopped_zygote_is_replaced(modules: Path, tmp_path: Path) -> None:
    first, first_end = request()
    assert first.wait_for_pid(60) is not None
    zygote = int(first_end.recv(10))
    os.kill(zygote, signal.SIGSTOP)
    until(lambda: psutil.Process(zygote).status() == psutil.STATUS_STOPPED)
    own_end, child_end = socket.socketpair()
    with child_end, pytest.raises(ZygoteError, match="the zygote is stopped"):
        request_child(PRELOAD, os.environ, child_end, "children:wait", {})
    own_end.close()
    second, second_end = request()
    assert second.wait_for_pid(60) is not None
    assert zygote != int(second_end.recv(10)) in zygotes(tmp_path)
    os.kill(zygote, signal.SIGCONT)
    until(lambda: zygote not in zygotes(tmp_path))
    first_end.send(b"x")  # its child was left alone
    assert first_end.recv(10) == b""
    for child, end in ((first, first_end), (second, second_end)):
        child.close()
        end.close()


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("raise ImportError('no such library')", "importing children failed: ImportError"),
        (
            "from threading import Event, Thread\nThread(target=Event().wait, daemon=True).start()",
            "its imports started 1 thread",
        ),
    ],
)
def test_a_zygote_that_cannot_fork_says_why(modules: Path, code: str, reason: str) -> None:
    (modules / "children.py").write_text(code)
    assert reason in refusal()


def test_an_entry_that_returns_is_a_failure(modules: Path, tmp_path: Path) -> None:
    child, own_end = request("children:finish")
    assert child.wait_for_pid(60) is not None
    assert os.waitstatus_to_exitcode(child.wait(60) or 0) == 1
    child.close()
    own_end.close()


def test_without_linger_it_ends_with_its_last_child(
    modules: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LINGER, "0")
    children = [request() for _ in range(2)]
    for child, own_end in children:
        assert child.wait_for_pid(60) is not None
        assert own_end.recv(10)
    for child, own_end in children:
        assert len(zygotes(tmp_path)) == 1
        own_end.close()
        assert child.wait(60) == 0
        child.close()
    until(lambda: not zygotes(tmp_path))
    assert not list((tmp_path / "timonel").glob("*.sock"))

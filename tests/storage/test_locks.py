from __future__ import annotations

import fcntl
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from timonel.errors import InputError, TimonelError
from timonel.storage import exclusive, is_held

HOLDS = """
import sys, time
from pathlib import Path
from timonel.storage import exclusive
with exclusive(Path(sys.argv[1])):
    print("now", flush=True)
    time.sleep(60)
"""


def test_a_lock_is_held_by_one(tmp_path: Path) -> None:
    lock = tmp_path / "new" / "lock"
    with (
        exclusive(lock),
        pytest.raises(TimonelError, match=r"for 0\.05 s"),
        exclusive(lock, timeout_s=0.05),
    ):
        pytest.fail("two holders")
    with exclusive(lock, timeout_s=0):
        pass


def test_a_block_that_raises_frees_the_lock(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no"), exclusive(tmp_path / "lock"):
        raise ValueError("no")
    with exclusive(tmp_path / "lock", timeout_s=0):
        pass


def test_a_held_lock_is_seen_without_taking_it(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    assert not is_held(lock)
    assert not lock.exists(), "a reader writes nothing"
    with exclusive(lock):
        assert is_held(lock)
    with lock.open() as other:
        fcntl.flock(other, fcntl.LOCK_SH)  # another process that asks
        assert not is_held(lock)


def test_who_waits_gets_it_next(tmp_path: Path) -> None:
    order: list[str] = []

    def second() -> None:
        with exclusive(tmp_path / "lock"):
            order.append("second")

    with exclusive(tmp_path / "lock"):
        waiting = threading.Thread(target=second)
        waiting.start()
        order.append("first")
    waiting.join()
    assert order == ["first", "second"]


def test_a_long_wait_is_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("timonel.storage.locks._SILENT_S", 0.0)
    lock = tmp_path / "lock"
    with (
        exclusive(lock),
        pytest.raises(TimonelError, match=r"for 0\.1 s"),
        exclusive(lock, timeout_s=0.1),
    ):
        pytest.fail("two holders")
    assert [record.getMessage() for record in caplog.records] == [
        f"waiting for another process that holds {lock}, for up to 0.1 s"
    ]


@pytest.mark.process
def test_a_holder_that_is_killed_frees_the_lock(
    tmp_path: Path, killed: Callable[..., None]
) -> None:
    killed(HOLDS, tmp_path / "lock")
    with exclusive(tmp_path / "lock", timeout_s=0):
        pass


def test_a_lock_that_cannot_be_made_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write"), exclusive(tmp_path / "file" / "l"):
        pytest.fail("the block must not run")

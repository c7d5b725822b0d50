"""A process whose main thread never comes back from a library leaves all the same."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from timonel.engines.base import EXIT_RETRYABLE

pytestmark = pytest.mark.process

_PROGRAM = """
import ctypes, signal, sys
from pathlib import Path
from timonel.training.worker.termination import Terminated, Termination, watch_peers

termination = Termination()
termination.install()
held = Path(sys.argv[1])
watch_peers(lambda: termination.is_leaving, held.exists)
print("said before", end="")
sys.stderr.write("up\\n")
{then}
"""
# A mutex that is locked twice: as in a collective, no signal ends the wait.
_BLOCKS = (
    "lock = ctypes.CDLL(None).pthread_mutex_lock; m = (ctypes.c_char * 64)(); lock(m), lock(m)"
)
_SAVES = """
import time
try:
    with termination.deferred(lambda: None): time.sleep(60)
except Terminated:
    time.sleep(0.5)
    sys.exit(7)
"""


@pytest.fixture
def started(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    program = _PROGRAM.format(then=request.param)
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "held")],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stderr is not None
        assert process.stderr.readline() == "up\n"
        await_asleep(process.pid)
        yield process
        process.kill()


def await_asleep(pid: int) -> None:
    """Wait until the main thread is where the program ends up."""
    looks = 0
    while looks < 5:
        state = Path(f"/proc/{pid}/task/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        looks = looks + 1 if state == "S" else 0
        time.sleep(0.02)


def tell_twice(process: subprocess.Popen[str]) -> None:
    for _ in range(2):
        process.send_signal(signal.SIGTERM)
        time.sleep(0.05)


@pytest.mark.parametrize("started", [_BLOCKS], indirect=True)
def test_one_that_waits_for_nobody_any_more_leaves(started: subprocess.Popen[str]) -> None:
    started.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):  # the step may still end
        started.wait(0.5)
    started.send_signal(signal.SIGTERM)
    assert started.wait(20) == EXIT_RETRYABLE
    assert started.stdout is not None
    assert started.stdout.read() == "said before"


@pytest.mark.parametrize("started", [_BLOCKS], indirect=True)
def test_a_file_is_written_first(started: subprocess.Popen[str], tmp_path: Path) -> None:
    (tmp_path / "held").touch()
    tell_twice(started)
    with pytest.raises(subprocess.TimeoutExpired):
        started.wait(0.5)
    (tmp_path / "held").unlink()
    assert started.wait(20) == EXIT_RETRYABLE


@pytest.mark.parametrize("started", [_SAVES], indirect=True)
def test_who_can_leave_by_itself_does(started: subprocess.Popen[str]) -> None:
    tell_twice(started)
    assert started.wait(20) == 7


def test_threads_that_compute_are_awake() -> None:
    program = (
        "import threading\n"
        "from timonel.training.worker.termination import all_others_sleep as asleep\n"
        "looks = []\n"
        "look = threading.Thread(target=lambda: looks.extend(asleep() for _ in range(50)))\n"
        "look.start()\nwhile look.is_alive(): sum(range(1000))\nassert not all(looks)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.contracts.engines import eventually

pytestmark = pytest.mark.process

PROGRAM = """
import sys, time
from pathlib import Path
from timonel.training.worker import heartbeat
heartbeat.BEAT_S = 0.02
heartbeat.begin(Path(sys.argv[1]))
sys.stdin.read()
"""


def test_a_task_beats_until_its_interpreter_ends(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], stdin=subprocess.PIPE
    ) as task:
        beat = tmp_path / "alive"
        eventually(beat.exists)
        first = beat.stat().st_mtime_ns
        eventually(lambda: beat.stat().st_mtime_ns > first)
        task.communicate()
    assert task.returncode == 0
    assert not beat.exists()


def test_a_heartbeat_whose_folder_is_gone_disturbs_nobody(tmp_path: Path) -> None:
    folder = tmp_path / "task"
    folder.mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(folder)],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as task:
        eventually((folder / "alive").exists)
        (folder / "alive").unlink()
        _, errors = task.communicate()
    assert (task.returncode, errors) == (0, "")

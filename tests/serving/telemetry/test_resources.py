from __future__ import annotations

import subprocess
import sys
import time

import pytest

from tests.waiting import until
from timonel.serving.telemetry.resources import measure, proportional_bytes

BUSY = """
import sys
end = __import__("time").process_time() + 0.2
while __import__("time").process_time() < end:
    pass
print("done", flush=True)
sys.stdin.read()
"""


@pytest.mark.process
def test_processes_below_count_while_they_run_and_afterwards() -> None:
    before = measure()
    assert before.memory["server"] > 10_000_000
    with subprocess.Popen(
        [sys.executable, "-c", BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"done\n"
        running = measure()
        assert running.memory["compute"] > before.memory["compute"] + 1_000_000
        assert running.cpu_s["compute"] >= before.cpu_s["compute"] + 0.19
    assert measure().cpu_s["compute"] >= running.cpu_s["compute"]


def test_own_cpu_time() -> None:
    before = measure().cpu_s["server"]
    goal = time.process_time() + 0.1
    until(lambda: time.process_time() >= goal, poll_s=0)
    assert measure().cpu_s["server"] >= before + 0.09


def test_an_ended_process_has_no_memory() -> None:
    assert proportional_bytes(2**22 + 1) == 0

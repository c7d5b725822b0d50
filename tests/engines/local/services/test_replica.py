from __future__ import annotations

from timonel.engines.local.services.replica import ReplicaProcess
from timonel.processes.tree import Identity


def test_silence_is_counted_between_checks_and_not_while_the_supervisor_is_suspended() -> None:
    process = ReplicaProcess("web-1-1", Identity(1, 1, "boot"), descriptor=-1)
    process.add_silence(100.0, longest_s=2.0)
    assert process.silent_s == 0.0
    process.add_silence(101.5, longest_s=2.0)
    assert process.silent_s == 1.5
    process.add_silence(100_000.0, longest_s=2.0)
    assert process.silent_s == 3.5

"""What the local service engine does when its own processes die or its disk fails."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.contracts.engines import eventually
from tests.contracts.services import get
from tests.engines.local.services.harness import LocalHarness
from timonel.engines import ServiceState, ServiceStatus
from timonel.engines.local.services import LocalServiceEngine
from timonel.engines.local.services.folder import DOWN
from timonel.errors import CorruptError, EngineError, InputError, SpecError
from timonel.processes.tree import Identity
from timonel.storage import exclusive


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[LocalHarness]:
    harness = LocalHarness(tmp_path / "services")
    yield harness
    harness.close()


def supervisor(harness: LocalHarness) -> Identity:
    found = Identity.from_json(harness.folder().read_record().supervisor)
    assert found is not None
    return found


def guard(harness: LocalHarness) -> int:
    return int(
        Path(f"/proc/{supervisor(harness).pid}/stat").read_text().rpartition(")")[2].split()[1]
    )


def kill_supervisor(harness: LocalHarness) -> None:
    """Kill the supervisor and wait for the next one."""
    before = supervisor(harness)
    before.signal(signal.SIGKILL)
    eventually(lambda: supervisor(harness) != before and supervisor(harness).is_alive)


def kill_guard_and_supervisor(harness: LocalHarness) -> None:
    found = supervisor(harness)
    os.kill(guard(harness), signal.SIGKILL)
    found.signal(signal.SIGKILL)
    eventually(lambda: not harness.folder().is_supervised)


def pids(status: ServiceStatus) -> set[int]:
    return {get(replica)["pid"] for replica in status.replicas}


@pytest.mark.process
def test_another_supervisor_adopts_the_replicas(harness: LocalHarness) -> None:
    before = harness.apply(replicas=2)
    processes = pids(before)
    kill_supervisor(harness)
    after = harness.wait_until(lambda s: s.is_settled)
    assert (after, pids(after)) == (before, processes)
    harness.kill_replica("web", before.replicas[0].name)
    again = harness.wait_until(lambda s: s.is_settled and s.replicas[0].restarts == 1)
    assert len(pids(again) - processes) == 1
    harness.engine.scale("web", 0)
    harness.wait_until(lambda s: not s.replicas)


@pytest.mark.process
def test_a_replica_that_ends_without_a_supervisor_is_restarted(harness: LocalHarness) -> None:
    (replica,) = harness.apply("stray").replicas
    keeper = guard(harness)
    os.kill(keeper, signal.SIGSTOP)
    try:
        supervisor(harness).signal(signal.SIGKILL)
        harness.kill_replica("web", replica.name)
    finally:
        os.kill(keeper, signal.SIGCONT)
    after = harness.wait_until(lambda s: s.is_settled and s.replicas[0].restarts == 1)
    assert after.replicas[0].message == "ended without a supervisor"


@pytest.mark.process
@pytest.mark.parametrize("command", ["apply", "scale"])
def test_the_next_command_adopts_the_replicas(harness: LocalHarness, command: str) -> None:
    before = harness.apply(replicas=2)
    processes = pids(before)
    kill_guard_and_supervisor(harness)
    down = harness.engine.service("web")
    assert (down.state, down.message) == (ServiceState.DOWN, DOWN)
    assert down.replicas == before.replicas
    if command == "apply":
        harness.engine.apply(harness.spec())
    else:
        harness.engine.scale("web", 2)
    after = harness.wait_until(lambda s: s.is_settled)
    assert (after, pids(after)) == (before, processes)


@pytest.mark.process
def test_nothing_runs_after_a_reboot_until_the_next_command(harness: LocalHarness) -> None:
    """Kill all processes, as a reboot does."""
    before = harness.apply(replicas=2)
    kill_guard_and_supervisor(harness)
    for pid, _ in harness.processes():
        os.kill(pid, signal.SIGKILL)
    # A killed process loses its command line, which finds leftovers, before it is a zombie.
    eventually(lambda: all(r.state == "lost" for r in harness.engine.service("web").replicas))
    (down,) = harness.engine.services()
    assert down.state is ServiceState.DOWN
    assert [r.addresses for r in down.replicas] == [{}] * 2
    assert harness.leftovers() == []
    harness.engine.apply(harness.spec())
    after = harness.wait_until(lambda s: s.is_settled)
    assert [(r.name, r.restarts) for r in after.replicas] == [(r.name, 1) for r in before.replicas]


@pytest.mark.process
def test_a_supervisor_killed_during_a_stop_is_replaced(harness: LocalHarness) -> None:
    harness.apply("ignore-term", "stray", stop_grace_s=1.0)
    harness.engine.delete("web")
    kill_supervisor(harness)
    harness.wait_for_end()


@pytest.mark.process
def test_a_replica_that_is_stopping_gets_one_signal(harness: LocalHarness) -> None:
    (replica,) = harness.apply("ignore-term").replicas
    harness.engine.scale("web", 0)
    eventually(lambda: harness.folder().read_record().replicas[0].is_signalled)
    for _ in range(2):
        kill_supervisor(harness)
    log = list(harness.engine.logs("web", replica.name))
    assert log.count("ignored SIGTERM") == 1
    harness.kill_replica("web", replica.name)


@pytest.mark.process
def test_old_replicas_that_are_stopping_count_in_a_replacement(harness: LocalHarness) -> None:
    harness.apply("ignore-term", replicas=3)
    harness.engine.apply(harness.spec(revision=2))

    def stopping(status: ServiceStatus) -> set[str]:
        return {replica.name for replica in status.replicas if replica.state == "stopping"}

    killed: set[str] = set()
    for _ in range(3):
        status = harness.wait_until(lambda s: bool(stopping(s) - killed))
        assert (len(stopping(status)), len(status.replicas)) == (1, 4)
        killed.update(stopping(status))
        harness.kill_replica("web", *stopping(status))
    harness.wait_until(lambda s: s.is_settled)


@pytest.mark.process
def test_killing_the_supervisor_again_and_again_starts_nothing_twice(
    harness: LocalHarness,
) -> None:
    """Kill it at any point of starts and stops."""
    harness.engine.apply(harness.spec(replicas=1))
    for size in (3, 1, 4):
        harness.engine.scale("web", size)
        supervisor(harness).signal(signal.SIGKILL)
    status = harness.wait_until(lambda s: s.is_settled)
    assert len(status.replicas) == 4
    assert len(replicas(harness)) == len(pids(status)) == 4


@pytest.mark.process
def test_a_signal_to_stop_ends_the_replicas_and_keeps_the_service(harness: LocalHarness) -> None:
    harness.apply()
    supervisor(harness).signal(signal.SIGTERM)
    eventually(lambda: not harness.leftovers())
    status = harness.engine.service("web")
    assert (status.state, status.replicas, status.requested) == (ServiceState.DOWN, (), 1)
    harness.engine.scale("web", 1)
    harness.wait_until(lambda s: s.is_settled)


@pytest.mark.process
def test_a_request_during_a_shutdown_is_fulfilled(harness: LocalHarness) -> None:
    harness.apply("ignore-term", stop_grace_s=1.0)
    supervisor(harness).signal(signal.SIGTERM)
    harness.wait_until(lambda s: s.replicas[0].state == "stopping")
    harness.engine.scale("web", 2)
    status = harness.wait_until(lambda s: s.is_settled and len(s.ready) == 2)
    assert status.requested == 2


@pytest.mark.process
def test_nothing_of_a_service_outlives_its_folder(harness: LocalHarness) -> None:
    harness.apply(replicas=2)
    shutil.rmtree(harness.folder().root)
    eventually(lambda: not harness.leftovers())


@pytest.mark.process
def test_a_damaged_record_is_replaced(harness: LocalHarness) -> None:
    before = pids(harness.apply(replicas=2))
    kill_guard_and_supervisor(harness)
    (harness.folder().root / "status.json").write_text("{")
    harness.engine.apply(harness.spec(replicas=2))
    after = harness.wait_until(lambda s: s.is_settled)
    assert len(replicas(harness)) == len(pids(after)) == 2
    assert not pids(after) & before


@pytest.mark.process
def test_with_a_damaged_record_nothing_is_recorded(harness: LocalHarness) -> None:
    harness.apply()
    record = harness.folder().root / "status.json"
    content = record.read_text()
    record.write_text("{")
    with pytest.raises(CorruptError):
        harness.engine.delete("web")
    assert not harness.folder().read_request().deleting
    record.write_text(content)


@pytest.mark.process
def test_a_stopped_supervisor_does_not_take_replicas_for_hung(harness: LocalHarness) -> None:
    before = harness.apply(hang_timeout_s=1.0)
    found = supervisor(harness)
    found.signal(signal.SIGSTOP)
    deadline = time.monotonic() + 1.5  # more than the hang timeout
    eventually(lambda: time.monotonic() > deadline)
    found.signal(signal.SIGCONT)
    harness.engine.scale("web", 2)
    after = harness.wait_until(lambda s: s.is_settled)
    assert after.replicas[0] == before.replicas[0]


@pytest.mark.process
def test_a_stopped_supervisor_is_reported(harness: LocalHarness) -> None:
    before = harness.apply(replicas=2)
    found = supervisor(harness)
    found.signal(signal.SIGSTOP)
    try:
        harness.kill_replica("web", before.replicas[1].name)
        status = harness.wait_until(lambda s: s.state is ServiceState.UNRESPONSIVE)
        assert [replica.state for replica in status.replicas] == ["ready", "lost"]
        message = rf"the supervisor of web \(process {found.pid}\) has not answered for \d+ s"
        assert re.match(message, status.message or "")
        for request in (
            lambda: harness.engine.apply(harness.spec(replicas=3)),
            lambda: harness.engine.scale("web", 3),
            lambda: harness.engine.delete("web"),
        ):
            with pytest.raises(EngineError, match=message) as raised:
                request()
            assert f"kill -CONT {found.pid}" in (raised.value.hint or "")
        assert harness.engine.service("web").requested == 2
    finally:
        found.signal(signal.SIGCONT)
    harness.wait_until(lambda s: s.is_settled and s.replicas[1].restarts == 1)


@pytest.mark.process
def test_a_dead_supervisor_is_not_taken_for_a_stopped_one(harness: LocalHarness) -> None:
    harness.apply()
    keeper = guard(harness)
    os.kill(keeper, signal.SIGSTOP)
    try:
        kill = supervisor(harness)
        kill.signal(signal.SIGKILL)
        eventually(lambda: not kill.is_alive)
        os.utime(harness.folder().supervisor_lock, (0, 0))
        assert harness.engine.service("web").state is ServiceState.ACTIVE
        harness.engine.scale("web", 2)
    finally:
        os.kill(keeper, signal.SIGCONT)
    harness.wait_until(lambda s: s.is_settled and len(s.ready) == 2)


@pytest.mark.process
def test_a_change_of_the_clock_does_not_look_like_silence(harness: LocalHarness) -> None:
    harness.apply()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: 1e12)
        assert harness.engine.service("web").is_settled


@pytest.mark.process
def test_a_command_of_a_service_does_not_wait_for_those_of_others(harness: LocalHarness) -> None:
    harness.apply()
    with exclusive(harness.services / ".locks" / "other"):
        harness.engine.scale("web", 0)
    with (
        exclusive(harness.services / ".locks" / "web"),
        ThreadPoolExecutor(1) as pool,
    ):
        other = pool.submit(harness.apply, name="other")
        assert other.result(60).is_settled


@pytest.mark.process
def test_appliers_in_several_processes(harness: LocalHarness) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from timonel.engines import ServiceSpec\n"
        "from timonel.engines.local.services import LocalServiceEngine\n"
        "LocalServiceEngine(Path(sys.argv[1])).apply("
        "ServiceSpec.model_validate_json(sys.argv[2]))\n"
    )
    spec = harness.spec(replicas=2).model_dump_json()
    command = [sys.executable, "-c", program, str(harness.services), spec]
    running = [subprocess.Popen(command) for _ in range(3)]
    assert [each.wait(60) for each in running] == [0, 0, 0]
    status = harness.wait_until(lambda s: s.is_settled)
    assert len(replicas(harness)) == len(pids(status)) == 2


def test_a_supervisor_that_cannot_start_leaves_no_service(
    harness: LocalHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(EngineError, match="cannot start the service's supervisor"):
        harness.engine.apply(harness.spec())
    assert harness.engine.services() == []
    assert not harness.folder().root.exists()


def test_an_unwritable_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "services").write_text("a file")
    harness = LocalHarness(tmp_path / "services")
    with pytest.raises(InputError, match="cannot write"):
        harness.engine.apply(harness.spec())


@pytest.mark.process
def test_a_full_disk_ends_no_replica(small_disk: Path) -> None:
    small = LocalHarness(small_disk / "services")
    before = small.apply(hang_timeout_s=1.0)
    filler = small_disk / "filler"
    fill(filler)
    with pytest.raises(InputError, match="No space left on device"):
        small.engine.scale("web", 3)
    (replica,) = small.engine.service("web").replicas
    processes = pids(before)
    get(replica, "/freeze")  # the supervisor still kills it
    eventually(lambda: not replicas(small))
    filler.unlink()
    after = small.wait_until(lambda s: s.is_settled and s.replicas[0].restarts >= 1)
    assert pids(after).isdisjoint(processes)
    small.close()


def replicas(harness: LocalHarness) -> list[str]:
    return [text for _, text in harness.processes() if "service_replica" in text]


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        try:
            while file.write(b"\0" * 512):
                pass
        except OSError:
            return


def test_a_damaged_document_is_an_error(tmp_path: Path) -> None:
    harness = LocalHarness(tmp_path / "services")
    folder = harness.folder().root
    folder.mkdir(parents=True)
    (folder / "service.json").write_text('{"kind": "service", "format": 1, "replicas": "many"}')
    with pytest.raises(CorruptError, match="damaged"):
        harness.engine.service("web")
    assert harness.engine.services() == []


@pytest.mark.process
def test_the_specification_is_private(harness: LocalHarness) -> None:
    harness.apply(env={"TOKEN": "secret"})
    assert harness.folder().root.stat().st_mode & 0o077 == 0


def test_an_invalid_name_is_unknown(tmp_path: Path) -> None:
    engine = LocalServiceEngine(tmp_path)
    for name in ("", "..", "a/b", ".hidden"):
        with pytest.raises(InputError, match="no such service"):
            engine.service(name)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"image": "img"}, "an image"),
        ({"resources": {"accelerators": {"tpu": 1}}}, "needs 1 tpu, but this machine has 0"),
        ({"placement": {"node_selector": {"disk": "ssd"}}}, "node selectors"),
    ],
)
def test_what_this_machine_does_not_have_is_refused(
    tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    harness = LocalHarness(tmp_path / "services")
    with pytest.raises(SpecError, match=message):
        harness.engine.apply(harness.spec(**fields))
    assert not harness.services.exists()

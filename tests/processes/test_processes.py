"""Processes, sockets, ports and memory, each by itself."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.contracts.engines import eventually
from timonel.processes.cores import usable_cores
from timonel.processes.loop import Channel
from timonel.processes.memory import OomWatch, is_memory_scarce, oom_counters
from timonel.processes.ports import PortReservation
from timonel.processes.tree import (
    MARKER,
    RESERVED,
    RESERVED_BYTES,
    Identity,
    descendants,
    identify,
    kill_all,
    marked,
    own_identity,
)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    env = {**os.environ, MARKER: "1-2-three", "PLACE": "here"}
    with subprocess.Popen(["sleep", "300"], env=env) as process:
        yield process
        process.kill()


class TestLowerPriority:
    @pytest.mark.process
    def test_others_come_first_within_the_session_and_beyond_it(self) -> None:
        program = (
            "import os, pathlib\n"
            "from timonel.processes.tree import lower_priority\n"
            "lower_priority(19)\n"
            "group = pathlib.Path('/proc/self/autogroup')\n"
            "print(os.nice(0), group.read_text().split()[-1] if group.exists() else 'none')\n"
        )
        result = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=True,
            start_new_session=True,
        )
        grouped = Path("/proc/self/autogroup").exists()
        assert result.stdout.split() == ["19", "19" if grouped else "none"]


class TestPorts:
    def test_a_server_can_listen_on_a_reserved_port(self) -> None:
        with PortReservation(3) as ports, socket.socket() as server:
            assert len(set(ports)) == 3
            # As gRPC's servers in TensorFlow do: one flag, all interfaces.
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(("", int(ports.addresses[0].rpartition(":")[2])))
            server.listen()
            host, _, port = ports.addresses[0].rpartition(":")
            socket.create_connection((host, int(port)), timeout=5).close()

    def test_nobody_else_gets_a_reserved_port(self) -> None:
        with (
            PortReservation(1) as ports,
            socket.socket() as other,
            pytest.raises(OSError, match="in use"),
        ):
            other.bind(("127.0.0.1", int(ports.addresses[0].rpartition(":")[2])))

    def test_released_ports_are_free(self) -> None:
        with PortReservation(1) as ports:
            port = int(ports.addresses[0].rpartition(":")[2])
        with socket.socket() as other:
            other.bind(("127.0.0.1", port))


class TestChannel:
    @given(st.lists(st.dictionaries(st.text(max_size=3), st.text(max_size=9)), max_size=20))
    def test_messages_come_whole_and_in_order(self, messages: list[dict[str, str]]) -> None:
        left, right = map(Channel, socket.socketpair())
        for message in messages:
            left.send(message)
        assert right.receive() == messages
        left.close()
        assert right.receive() == []
        assert not right.is_open
        right.close()

    def test_what_the_peer_does_not_take_yet_is_kept(self) -> None:
        left, right = map(Channel, socket.socketpair())
        big = {"text": "x" * 2_000_000}
        left.send(big)
        assert left.wants_write
        received: list[object] = []
        while not received:
            received = right.receive()
            left.flush()
        assert received == [big]
        left.close()
        right.close()

    def test_a_peer_that_is_gone_is_no_error(self) -> None:
        left, right = map(Channel, socket.socketpair())
        right.close()
        left.send({"a": 1})
        assert left.receive() == []
        assert not left.is_open
        left.close()


class TestProcesses:
    def test_an_identity_is_more_than_a_pid(self) -> None:
        own = own_identity()
        other = Identity(own.pid, own.start_ticks + 1, own.boot_id)
        assert own.is_alive
        assert not other.is_alive
        assert not other.signal(signal.SIGKILL)
        assert Identity.from_json(own.as_json()) == own
        assert Identity.from_json({"pid": 1}) is None

    def test_a_zombie_is_not_alive(self, sleeper: subprocess.Popen[bytes]) -> None:
        found = identify(sleeper.pid)
        assert found is not None
        assert found.signal(signal.SIGKILL)
        eventually(lambda: not found.is_alive)

    def test_processes_are_found_by_marker_and_by_ancestry(
        self, sleeper: subprocess.Popen[bytes]
    ) -> None:
        eventually(lambda: marked("1-2-three") == [sleeper.pid])
        assert marked("1-2-three", inside="PLACE=here") == [sleeper.pid]
        assert marked("1-2-three", inside="PLACE=there") == []
        assert sleeper.pid in descendants(os.getpid())
        assert sleeper.pid not in descendants(os.getpid(), exclude=[sleeper.pid])
        assert kill_all(lambda: marked("1-2-three"))
        assert sleeper.wait() == -signal.SIGKILL

    @pytest.mark.process
    def test_a_process_can_mark_itself(self) -> None:
        program = (
            "from timonel.processes.tree import mark_process\n"
            "mark_process({'TIMONEL_SUPERVISOR': '4-5-six', 'PLACE': 'here'})\n"
            "print(flush=True)\n"
            "input()"
        )
        env = {**os.environ, RESERVED: " " * RESERVED_BYTES}
        with subprocess.Popen(
            [sys.executable, "-c", program], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            assert marked("4-5-six", inside="PLACE=here") == [process.pid]
            process.kill()


class TestOutOfMemory:
    def test_a_kill_since_the_last_sample_is_seen(self, tmp_path: Path) -> None:
        counter = tmp_path / "memory.events"
        counter.write_text("low 0\noom 4\noom_kill 3\n")
        watch = OomWatch((counter,))
        assert not watch.has_killed()
        counter.write_text("low 0\noom 5\noom_kill 4\n")
        assert watch.has_killed()
        watch.sample()
        assert not watch.has_killed()

    @pytest.mark.parametrize(
        ("groups", "counter"),
        [
            ("0::/user.slice/a.scope\n", "user.slice/a.scope/memory.events"),
            ("0::/\n", "memory.events"),
            ("4:memory:/job\n0::/\n", "memory/job/memory.oom_control"),
        ],
    )
    def test_counters_of_both_versions_are_found(
        self, tmp_path: Path, groups: str, counter: str
    ) -> None:
        proc, cgroups = tmp_path / "proc", tmp_path / "cgroup"
        (proc / "self").mkdir(parents=True)
        (proc / "self/cgroup").write_text(groups)
        (cgroups / counter).parent.mkdir(parents=True, exist_ok=True)
        (cgroups / counter).write_text("oom_kill 0\n")
        assert set(oom_counters(proc, cgroups)) == {cgroups / counter}

    def test_without_a_group_the_machine_counts(self, tmp_path: Path) -> None:
        assert oom_counters(tmp_path, tmp_path) == (tmp_path / "vmstat",)
        assert not OomWatch((tmp_path / "vmstat",)).has_killed()


def machine(tmp_path: Path, available_kb: int, groups: str = "") -> tuple[Path, Path]:
    proc, cgroups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    meminfo = f"MemTotal:  1000000 kB\nMemFree: 1 kB\nMemAvailable: {available_kb} kB\n"
    (proc / "meminfo").write_text(meminfo)
    (proc / "self/cgroup").write_text(groups)
    return proc, cgroups


@pytest.mark.parametrize(("available_kb", "scarce"), [(99_000, True), (101_000, False)])
def test_a_machine_may_be_short_of_memory(tmp_path: Path, available_kb: int, scarce: bool) -> None:
    assert is_memory_scarce(*machine(tmp_path, available_kb)) is scarce


@pytest.mark.parametrize(
    ("groups", "folder", "files"),
    [
        ("0::/job\n", "job", ("memory.max", "memory.current", "inactive_file")),
        (
            "4:memory:/job\n",
            "memory/job",
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ),
    ],
)
def test_a_group_may_be_short_of_memory(
    tmp_path: Path, groups: str, folder: str, files: tuple[str, str, str]
) -> None:
    proc, cgroups = machine(tmp_path, 900_000, groups)
    limit, usage, cache = files
    group = cgroups / folder
    group.mkdir(parents=True)
    (group / limit).write_text("max\n")
    (group / usage).write_text("950\n")
    assert not is_memory_scarce(proc, cgroups)
    (group / limit).write_text("1000\n")
    assert is_memory_scarce(proc, cgroups)
    # What the kernel gives back by itself is there to be used.
    (group / "memory.stat").write_text(f"anon 1\n{cache} 500\n")
    assert not is_memory_scarce(proc, cgroups)


def test_without_any_figures_nothing_is_memory_scarce(tmp_path: Path) -> None:
    assert not is_memory_scarce(tmp_path, tmp_path)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"cpu.max": "150000 100000"}, 1.5),
        ({"cpu.max": "max 100000"}, None),
        ({"cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000"}, 0.5),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ({}, None),
    ],
)
def test_the_control_groups_share_of_the_cores(
    files: dict[str, str], expected: float | None, tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    present = len(os.sched_getaffinity(0))
    assert usable_cores(tmp_path) == (present if expected is None else min(expected, present))

"""The small parts of the local engine, each by itself."""

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

from timonel.engines.local.channel import Channel
from timonel.engines.local.logs import LogTail, follow_logs, read_logs
from timonel.engines.local.oom import OomWatch, find_counters
from timonel.engines.local.ports import PortReservation
from timonel.engines.local.processes import (
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
from timonel.engines.local.warm.key import import_environment, warm_key
from timonel.engines.local.warm.stamps import is_current, loaded_files, write_stamps
from timonel.testing.engines import eventually


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    env = {**os.environ, MARKER: "1-2-three", "PLACE": "here"}
    with subprocess.Popen(["sleep", "300"], env=env) as process:
        yield process
        process.kill()


class TestStepBack:
    def test_others_come_first_within_the_session_and_beyond_it(self) -> None:
        program = (
            "import os, pathlib\n"
            "from timonel.engines.local.processes import step_back\n"
            "step_back(19)\n"
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
        assert sleeper.pid not in descendants(os.getpid(), spare=[sleeper.pid])
        assert kill_all(lambda: marked("1-2-three"))
        assert sleeper.wait() == -signal.SIGKILL

    def test_a_process_can_mark_itself(self) -> None:
        program = (
            "from timonel.engines.local.processes import mark_process\n"
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
        assert set(find_counters(proc, cgroups)) == {cgroups / counter}

    def test_without_a_group_the_machine_counts(self, tmp_path: Path) -> None:
        assert find_counters(tmp_path, tmp_path) == (tmp_path / "vmstat",)
        assert not OomWatch((tmp_path / "vmstat",)).has_killed()


class TestLogs:
    def test_a_line_is_yielded_when_it_is_whole(self, tmp_path: Path) -> None:
        path = tmp_path / "worker-0.log"
        tail = LogTail("worker-0", path)
        assert list(tail.read()) == []
        path.write_bytes(b"one\r\ntw")
        assert [line.text for line in tail.read()] == ["one"]
        with path.open("ab") as file:
            file.write(b"o\nthree \xff")
        assert [line.text for line in tail.read()] == ["two"]
        assert [line.text for line in tail.read(to_end=True)] == ["three \ufffd"]

    def test_following_ends_after_what_was_written_before_the_end(self, tmp_path: Path) -> None:
        path = tmp_path / "worker-0.log"

        def is_over() -> bool:
            path.write_text("last words")
            return True

        lines = list(follow_logs([LogTail("worker-0", path)], is_over))
        assert [line.text for line in lines] == ["last words"]

    def test_reading_goes_task_by_task(self, tmp_path: Path) -> None:
        tails = []
        for name in ("a-0", "b-0"):
            (tmp_path / name).write_text("x\ny\n")
            tails.append(LogTail(name, tmp_path / name))
        assert [(line.task_id, line.text) for line in read_logs(tails)] == [
            ("a-0", "x"),
            ("a-0", "y"),
            ("b-0", "x"),
            ("b-0", "y"),
        ]


class TestWarmKey:
    def test_only_what_an_import_may_see_counts(self) -> None:
        key = warm_key(("colorsys",), {"TF_ENABLE_ONEDNN_OPTS": "0"})
        same = {"TF_ENABLE_ONEDNN_OPTS": "0", "TIMONEL_DATA": "/data", "TF_CONFIG": "{}"}
        assert warm_key(("colorsys",), same) == key
        assert warm_key(("colorsys",), {"TF_ENABLE_ONEDNN_OPTS": "1"}) != key
        assert warm_key(("colorsys", "json"), same) != key
        assert import_environment(same) == {"TF_ENABLE_ONEDNN_OPTS": "0"}

    def test_what_is_inherited_counts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        key = warm_key(("colorsys",), {})
        monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {99})
        assert warm_key(("colorsys",), {}) != key

    def test_a_changed_or_removed_source_is_seen(self, tmp_path: Path) -> None:
        record = tmp_path / "key.files"
        assert is_current(record)
        source = tmp_path / "module.py"
        source.write_text("A = 1")
        stat = source.stat()
        write_stamps(record, {str(source): [stat.st_mtime_ns, stat.st_size]})
        assert is_current(record)
        source.write_text("A = 22")
        assert not is_current(record)
        source.unlink()
        assert not is_current(record)

    def test_a_file_changed_while_importing_fits_nothing(self) -> None:
        assert all(stamp is None for stamp in loaded_files(before_ns=0).values())
        assert any(stamp is not None for stamp in loaded_files(before_ns=1 << 62).values())

"""Parents of servers: restarts, stops, and what becomes of the server process."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import socket
import threading
import time
from pathlib import Path

import psutil
import pytest

from tests.engines.local.conftest import zygotes
from tests.python_path import python_path
from tests.serving.asking import predicted, server_process
from tests.serving.runtimes.faults import REFERENCE
from tests.waiting import until
from timonel.errors import ServingError
from timonel.serving import running_servers
from timonel.serving.launch import launch as start_server
from timonel.serving.settings.models import ModelSettings
from timonel.serving.settings.runtime import RuntimeSettings
from timonel.serving.settings.server import RestSettings, ServerSettings

pytestmark = pytest.mark.process

DRAIN_S = 0.3
END_S = DRAIN_S + 15
"""Within it, a stopped server has ended: 4 s after draining it is killed."""
HOW = {"spawned": "faulty", "forked": "tensorflow"}
"""Names of the runtime. That of TensorFlow has a zygote."""


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Let servers take the faulty runtime for TensorFlow, and have zygotes of their own."""
    plugins = tmp_path_factory.mktemp("plugins")
    info = plugins / "faulty_runtime-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: faulty-runtime\nVersion: 1\n")
    names = "".join(f"{name} = {REFERENCE}\n" for name in HOW.values())
    (info / "entry_points.txt").write_text(f"[timonel.runtimes]\n{names}")
    real = importlib.util.find_spec("tensorflow")
    (plugins / "tensorflow").mkdir()
    (plugins / "tensorflow" / "__init__.py").touch()
    for name in ("core", "compiler"):  # with protos
        (plugins / "tensorflow" / name).symlink_to(Path(real.origin).with_name(name))
    folder = tmp_path_factory.mktemp("runtime")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", python_path(plugins))
        patch.setenv("XDG_RUNTIME_DIR", str(folder))
        yield folder
    for pid in zygotes(folder):
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def version(workspace):
    folder = workspace.models / "m" / "1"
    folder.mkdir(parents=True)
    (folder / "saved_model.pb").write_text("fine")
    return folder


@pytest.fixture(params=HOW)
def how(request):
    return request.param


@pytest.fixture
def launch(environment, version, workspace):
    """Start a server of the version; no process of it may be left in the end."""
    left = []

    def start(how, **changes):
        settings = ServerSettings(
            models=(ModelSettings(name="m", base_path=str(version.parent)),),
            servers_folder=str(workspace.servers),
            runtime=RuntimeSettings(name=HOW[how]),
            **{"rest_port": 0, "grpc_port": 0, "drain_s": DRAIN_S, **changes},
        )
        server = start_server(settings, workspace)
        left.append(server)
        return server

    yield start
    for server in left:
        server.stop()
        assert server_of(server) is None


def server_of(server):
    with contextlib.suppress(ValueError):
        return server_process(server)
    return None


def ask(server, do, x=1.0):
    """Return the answer, or None without one."""
    try:
        return predicted(server, "m", {"do": do, "x": x})
    except (OSError, ValueError):  # cut off
        return None


def hang(server, version, do):
    """Send a request that is never answered, and return once it is computed."""
    threading.Thread(target=ask, args=(server, do), daemon=True).start()
    until((version / "busy").exists)


def test_a_killed_server_is_back_at_the_same_ports(launch, workspace, environment, how):
    server = launch(how)
    first = server_process(server)
    forked = first.ppid() != server.pid
    assert forked is (how == "forked")
    addresses = server.rest_url, server.grpc_address
    first.kill()
    until(lambda: ask(server, "double") == (200, 2.0))
    assert server_process(server) != first
    (record,) = running_servers(workspace.servers)
    assert (record.pid, record.rest_url, record.grpc_address) == (server.pid, *addresses)
    with socket.create_connection(("127.0.0.1", int(addresses[1].rpartition(":")[2]))):
        pass
    assert server.stop() == 0
    assert "The server was killed by SIGKILL. Restarting in 0 s" in server.logs()
    assert not running_servers(workspace.servers)


def test_a_server_that_crashes_again_and_again_is_given_up(launch, how):
    server = launch(how)
    while server.is_running:
        with contextlib.suppress(OSError):
            ask(server, "exit")
    assert server.wait() == ServingError.exit_code
    message = "The server ended 5 times within 300 s; at last it ended with exit code 3"
    assert server.logs().splitlines()[-1].endswith(message)
    assert "Traceback" not in server.logs()


def test_a_stopped_server_ends_well(launch, how):
    server = launch(how)
    process = server_process(server)
    assert server.stop() == 0
    assert not process.is_running()


@pytest.mark.parametrize("how", ["forked"])
def test_a_stop_while_the_zygote_is_asked(launch, how):
    server = launch(how)
    first = server_process(server)
    zygote = first.parent()
    zygote.suspend()
    try:
        first.kill()
        until(lambda: "Restarting" in server.logs())
        began = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began < END_S
    finally:
        zygote.resume()
    # What it forks afterwards finds no orders.
    until(lambda: not zygote.children())


@pytest.mark.parametrize("do", ["wait", "hang"])
def test_hung_requests_do_not_hold_up_the_end(launch, version, how, do):
    server = launch(how)
    hang(server, version, do)
    began = time.monotonic()
    assert server.stop() == 0
    assert time.monotonic() - began < END_S


def test_a_load_that_never_returns_does_not_hold_up_the_end(launch, version, how):
    (version / "saved_model.pb").write_text("hang")
    failures = []

    def start():
        with pytest.raises(ServingError) as caught:
            launch(how)
        failures.append(caught.value)

    before = set(psutil.Process().children())
    thread = threading.Thread(target=start)
    thread.start()
    until(lambda: set(psutil.Process().children()) > before)
    (parent,) = set(psutil.Process().children()) - before
    until((version / "loading").exists)
    began = time.monotonic()
    parent.terminate()
    thread.join(60)
    assert time.monotonic() - began < END_S
    assert "ended with exit code 0 before it was ready" in failures[0].message


def test_a_second_interrupt_kills_it(launch, version, how):
    server = launch(how, drain_s=600.0)
    process = server_process(server)
    hang(server, version, "wait")
    os.kill(server.pid, signal.SIGINT)
    until(lambda: "stopping" in server.logs())
    assert server.is_running
    os.kill(server.pid, signal.SIGINT)
    assert server.wait() == 0
    assert not process.is_running()


def test_a_killed_zygote_ends_nothing(launch, environment):
    server = launch("forked")
    first = server_process(server)
    for pid in zygotes(environment):
        os.kill(pid, signal.SIGKILL)
    until(lambda: not zygotes(environment))
    assert ask(server, "double") == (200, 2.0)
    assert first.is_running()
    # Its crashes are still noticed, and another zygote forks the next one.
    first.kill()
    until(lambda: ask(server, "double") == (200, 2.0))
    assert server_process(server).ppid() in zygotes(environment)


def test_without_a_zygote_it_is_spawned(launch, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/dev/null")
    server = launch("forked")
    assert server_process(server).ppid() == server.pid
    assert ask(server, "double") == (200, 2.0)
    assert "started without a zygote: cannot use /dev/null/timonel" in server.logs()


def test_a_failed_start_is_told_in_a_line_with_its_hint(launch, how):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ServingError) as caught:
            launch(how, rest_port=port)
    assert f"port {port} for REST is already in use" in caught.value.message
    assert "choose another port" in str(caught.value.hint)
    assert "\n" not in caught.value.message


def test_a_crash_while_it_starts_is_told(launch, version, how):
    (version / "saved_model.pb").write_text("crash")
    with pytest.raises(ServingError, match="The server was killed by SIGABRT before it was ready"):
        launch(how)


def test_it_ends_with_its_callers_end_of_the_pipe(launch, how):
    server = launch(how)
    process = server_process(server)
    server._process.stdin.close()
    psutil.wait_procs([process], timeout=30)
    assert not process.is_running()
    assert server.wait() == 0


@pytest.mark.parametrize("is_hung", [False, True])
def test_nothing_outlives_a_killed_parent(launch, version, how, is_hung):
    server = launch(how, rest=RestSettings(timeout_s=None))
    process = server_process(server)
    if is_hung:
        hang(server, version, "wait")
    os.kill(server.pid, signal.SIGKILL)
    psutil.wait_procs([process], timeout=30)
    assert not process.is_running()


def test_nothing_outlives_a_parent_that_is_killed_during_a_load(launch, version, workspace, how):
    (version / "saved_model.pb").write_text("hang")
    before = set(psutil.Process().children())

    def start():
        with pytest.raises(ServingError):
            launch(how)

    thread = threading.Thread(target=start)
    thread.start()
    until((version / "loading").exists)
    (parent,) = set(psutil.Process().children()) - before
    (log,) = (workspace.servers / "logs").iterdir()

    def holders():
        return [pid for pid in psutil.pids() if writes_to(pid, log)]

    assert len(holders()) == 2
    parent.kill()
    thread.join(30)
    until(lambda: not holders(), 30)


def writes_to(pid, log):
    try:
        return Path(f"/proc/{pid}/fd/1").readlink() == log
    except OSError:
        return False

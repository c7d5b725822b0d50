"""The life of a server process: starts that fail, ends in good order, and what it leaves."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from timonel.data.records import read_records
from timonel.errors import NotFoundError, ServingError, SpecError
from timonel.serving import running_servers, serve

pytestmark = pytest.mark.usefixtures("fake_runtime")


@pytest.fixture
def model(workspace):
    """Put version 1 of a model into the workspace."""
    folder = workspace.models / "m" / "1"
    folder.mkdir(parents=True)
    (folder / "saved_model.pb").write_text("2")
    return folder


def start(workspace, name="m", **options):
    options = {"rest_port": 0, "grpc_port": None, "block": False, "poll_s": 0.1, **options}
    return serve(name, workspace=workspace, runtime="fake", **options)


@pytest.mark.process
@pytest.mark.parametrize(("option", "purpose"), [("rest_port", "REST"), ("grpc_port", "gRPC")])
def test_a_port_in_use_is_told_at_once_with_another_one(workspace, model, option, purpose):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ServingError) as caught:
            start(workspace, **{option: port})
    assert f"port {port} for {purpose} is already in use" in caught.value.message
    assert "choose another port, such as " in str(caught.value.hint)
    assert not running_servers(workspace.servers)
    (log,) = (workspace.servers / "logs").iterdir()
    assert "Traceback" not in log.read_text()


@pytest.mark.process
def test_a_broken_model_is_told_at_start(workspace, model):
    (model / "saved_model.pb").write_text("no number")
    with pytest.raises(ServingError) as caught:
        start(workspace)
    assert "Version 1 of model m cannot be loaded: damaged model" in caught.value.message
    assert "\n" not in str(caught.value)


@pytest.mark.process
def test_the_log_names_the_models_that_serve(workspace, model):
    broken = workspace.models / "broken" / "1"
    broken.mkdir(parents=True)
    (broken / "saved_model.pb").write_text("no number")
    with start(workspace, ["m", "broken"]) as server:
        assert f"serving m at {server.rest_url}" in server.logs()
        assert server.idle == ("broken",)


@pytest.mark.process
def test_a_share_of_requests_beyond_all_is_refused(workspace, model, tmp_path):
    with pytest.raises(SpecError, match="--request-log-rate"):
        start(workspace, request_log=tmp_path, request_log_rate=1.5)


@pytest.mark.process
def test_requests_are_logged_where_asked(workspace, model, tmp_path):
    folder = tmp_path / "logs"
    with start(workspace, request_log=folder, request_log_rate=1.0) as server:
        request = urllib.request.Request(
            f"{server.rest_url}/v1/models/m:predict", data=b'{"instances": [0.5]}'
        )
        with urllib.request.urlopen(request, timeout=30) as response:
            assert json.load(response) == {"predictions": [1.0]}
    (path,) = folder.glob("m-*.tfrecord")
    assert len(list(read_records(path))) == 1


@pytest.mark.process
def test_an_unknown_runtime_is_told_with_the_known_ones(workspace, model):
    with pytest.raises(ServingError, match=r"no runtime nope: .*fake, .*tensorflow"):
        serve("m", workspace=workspace, runtime="nope", rest_port=0, grpc_port=0, block=False)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nope", "no model 'nope' in this workspace: the models are: empty"),
        ("empty", "empty has no version such as 1/saved_model.pb"),
        ("./nowhere", "no folder at"),
    ],
)
def test_an_unknown_model_starts_nothing(workspace, name, message):
    (workspace.models / "empty").mkdir()
    with pytest.raises(NotFoundError, match=message):
        start(workspace, name)
    assert not (workspace.servers / "logs").exists()


def test_a_server_that_dies_while_it_starts_says_where_to_look(workspace, model, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(
        ServingError,
        match=r"ended with exit code 1 before it was ready\. Last line of its log: nothing",
    ):
        start(workspace)


@pytest.mark.process
def test_a_server_that_is_killed_while_it_starts_says_so(workspace, model, monkeypatch, tmp_path):
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nkill -KILL $$\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    with pytest.raises(ServingError, match=r"was killed by SIGKILL before it was ready\."):
        start(workspace)


@pytest.mark.process
def test_starts_that_fail_do_not_delete_the_log_of_a_running_server(workspace, model, monkeypatch):
    with start(workspace) as server:
        monkeypatch.setattr(sys, "executable", "/bin/false")
        for _ in range(12):
            with pytest.raises(ServingError):
                start(workspace)
        assert server.log_path.exists()
        assert len(list(server.log_path.parent.iterdir())) <= 11


def ask(url, x, answers):
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
    connection.request("POST", "/v1/models/m:predict", json.dumps({"instances": [x]}))
    response = connection.getresponse()
    answers.append((response.status, json.loads(response.read())))
    connection.close()


@pytest.mark.process
def test_a_stopped_server_answers_first_and_leaves_nothing(workspace, model):
    server = start(workspace)
    host = server.rest_url.removeprefix("http://")
    idle = http.client.HTTPConnection(host, timeout=60)
    idle.request("GET", "/livez")
    assert idle.getresponse().read() == b"ok"
    (record,) = running_servers(workspace.servers)
    assert (record.pid, record.rest_url, record.models) == (server.pid, server.rest_url, ("m",))
    assert server.is_running
    answers = []
    asking = [threading.Thread(target=ask, args=(server.rest_url, 2.5, answers)) for _ in range(2)]
    for each in asking:
        each.start()
    time.sleep(0.5)
    assert server.stop() == 0
    for each in asking:
        each.join()
    assert answers == [(200, {"predictions": [5.0]})] * 2
    assert server.stop() == 0
    assert not server.is_running
    assert not list(workspace.servers.glob("*.json"))
    assert "stopping" in server.logs()
    with pytest.raises(ConnectionRefusedError):
        http.client.HTTPConnection(host).connect()
    idle.close()


@pytest.mark.process
def test_a_request_that_takes_too_long_does_not_hold_the_end_up(workspace, model):
    server = start(workspace, drain_s=1.0)
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask, server.rest_url, 4.0, [])
        time.sleep(0.5)
        began = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began < 30
        assert asking.exception(timeout=30) is not None


SCRIPT = textwrap.dedent(
    """
    import sys, time
    import timonel.serving
    server = timonel.serving.serve(
        "m", workspace=sys.argv[1], rest_port=0, grpc_port=None, block=False, runtime="fake",
        detach=sys.argv[2] == "detach",
    )
    print(server.pid, flush=True)
    time.sleep(0 if sys.argv[2] == "detach" else 600)
    """
)


@pytest.mark.process
@pytest.mark.parametrize("mode", ["leash", "detach"])
def test_a_server_ends_with_its_parent_unless_detached(workspace, model, mode):
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(workspace.root), mode], stdout=subprocess.PIPE
    ) as parent:
        pid = int(parent.stdout.readline())
        child = psutil.Process(pid)
        if mode == "leash":
            parent.kill()
        parent.wait()
    if mode == "detach":
        time.sleep(0.3)
        (record,) = running_servers(workspace.servers)
        assert record.pid == pid
        os.kill(pid, signal.SIGTERM)
    psutil.wait_procs([child], timeout=60)
    assert not child.is_running()
    assert not list(workspace.servers.glob("*.json"))


@pytest.mark.process
def test_waiting_passes_a_stop_signal_on(workspace, model):
    server = start(workspace)
    assert server.grpc_address is None
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM))
    timer.start()
    assert server.wait() == 0
    timer.join()


@pytest.mark.process
@pytest.mark.parametrize("block", [True, False])
def test_ctrl_c_on_the_announcement_ends_a_server_in_good_order(workspace, model, block):
    told = []

    def announce(server):
        told.append(server)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(10)

    if block:
        start(workspace, block=True, on_ready=announce)
    else:
        with pytest.raises(KeyboardInterrupt):
            start(workspace, on_ready=announce)
    (server,) = told
    assert server.stop() == 0
    assert not list(workspace.servers.glob("*.json"))


@pytest.mark.process
def test_a_detached_server_outlives_an_announcement_that_fails(workspace, model):
    servers = []

    def announce(server):
        servers.append(server)
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        start(workspace, on_ready=announce)
    assert not running_servers(workspace.servers)
    with pytest.raises(BrokenPipeError):
        start(workspace, on_ready=announce, detach=True)
    assert len(running_servers(workspace.servers)) == 1
    assert servers[-1].stop() == 0


@pytest.mark.process
def test_a_configuration_file_instead_of_models(workspace, model):
    other = workspace.models / "n" / "1"
    other.mkdir(parents=True)
    (other / "saved_model.pb").write_text("3")
    path = workspace.models / "models.config"

    def write(*names):
        path.write_text(
            "".join(
                f'model_config_list {{ config {{ name: "{name}" model_platform: "tensorflow" '
                f'base_path: "{workspace.models}/{name}" }} }}'
                for name in names
            )
        )

    write("m")
    with pytest.raises(SpecError, match="names the models itself"):
        start(workspace, config=path)
    with pytest.raises(SpecError, match="no model to serve"):
        start(workspace, ())
    with start(workspace, (), config=path) as server:
        assert server.models == ("m",)
        write("n")
        deadline = time.monotonic() + 20
        while '"n"' not in get(server, "/v1/models"):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    path.write_text("nonsense")
    with pytest.raises(SpecError, match="Error parsing text-format"):
        start(workspace, (), config=path)


def get(server, path):
    with urllib.request.urlopen(server.rest_url + path, timeout=30) as response:
        return response.read().decode()

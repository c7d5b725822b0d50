"""Several workers in front of one compute process, as clients see them; with the fake runtime."""

from __future__ import annotations

import collections
import concurrent.futures
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time

import grpc
import psutil
import pytest

from tests.waiting import until
from timonel.data.records import read_records
from timonel.errors import ServingError, SpecError
from timonel.serving import running_servers, serve
from timonel.serving.access import AccessSettings, LimitSettings
from timonel.serving.messages import get_model_status_pb2, model_management_pb2

pytestmark = pytest.mark.usefixtures("fake_runtime")
# Each comes from another port, so the kernel hands them to all workers; that one of two gets none
# of so many does not happen.
MANY = 40
BODY = json.dumps({"instances": [1.0]})


def publish(folder, version, factor):
    new = folder / f"new-{version}"
    new.mkdir(parents=True)
    (new / "saved_model.pb").write_text(str(factor))
    new.rename(folder / str(version))


@pytest.fixture
def model(workspace):
    publish(workspace.models / "m", 1, 2)
    return workspace.models / "m"


def start(workspace, **options):
    defaults = {"rest_port": 0, "grpc_port": None, "block": False, "poll_s": 0.1, "workers": 2}
    return serve("m", workspace=workspace, runtime="fake", **{**defaults, **options})


def connect(server):
    host = server.rest_url.removeprefix("http://")
    return http.client.HTTPConnection(host, timeout=30)


def ask(connection, path, body=None):
    connection.request("GET" if body is None else "POST", path, body)
    with connection.getresponse() as response:
        return response.status, response.read()


def ask_all(server, path, body=None):
    """Ask over many new connections, so that each worker is asked."""
    answers = []
    for _ in range(MANY):
        connection = connect(server)
        answers.append(ask(connection, path, body))
        connection.close()
    return answers


def workers(server):
    children = psutil.Process(server.pid).children()
    return [child for child in children if "timonel.serving.workers.worker" in command_of(child)]


def command_of(process):
    try:
        return process.cmdline()
    except psutil.Error:  # it has just ended
        return []


def compute(server):
    children = psutil.Process(server.pid).children(recursive=True)
    return [child for child in children if child.name().startswith("timonel m/")]


def requests_counted(page):
    pattern = rb'timonel_request_seconds_count\{model="m".*api="predict".*code="OK"\} (\d+)'
    return sum(int(found) for found in re.findall(pattern, page))


class Load:
    """Clients that ask over connections that they keep, and count what fails."""

    def __init__(self, server, clients, body=BODY, path="/v1/models/m:predict"):
        self.server, self.body, self.path = server, body, path
        self.answered = collections.Counter()
        self.broken: list[str] = []
        self.refused: list[str] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(clients)]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self):
        connection = connect(self.server)
        while not self._stop.is_set():
            try:
                connection.connect() if connection.sock is None else None
            except OSError as error:
                self.refused.append(repr(error))
                self._stop.wait(0.05)
                continue
            try:
                status, _ = ask(connection, self.path, self.body)
                self.answered[status] += 1
            except (OSError, http.client.HTTPException) as error:
                self.broken.append(repr(error))
                connection.close()
        connection.close()


def test_workers_share_one_compute_process_and_say_the_same(workspace, model):
    with start(workspace) as server:
        assert len(workers(server)) == 2
        assert len(compute(server)) == 1
        answers = ask_all(server, "/v1/models/m:predict", BODY)
        assert {status for status, _ in answers} == {200}
        for path in ("/v1/models", "/v1/models/m", "/readyz", "/v1/models/m/metadata"):
            assert len(set(ask_all(server, path))) == 1
        # Whoever is asked tells of all, at the moment.
        pages = [page for _, page in ask_all(server, "/monitoring/prometheus/metrics")]
        assert {requests_counted(page) for page in pages} == {MANY}
        record = running_servers(workspace.servers)
        assert [each.pid for each in record] == [server.pid]
    assert not running_servers(workspace.servers)


@pytest.mark.soak
def test_new_versions_take_the_place_of_old_ones_in_all(workspace, model):
    with start(workspace) as server, Load(server, 4) as load:
        publish(model, 2, 3)
        until(lambda: all(b"3.0" in body for _, body in ask_all(server, load.path, BODY)))
        # The old one is unloaded once no worker uses it, and that is told by all.
        until(lambda: len(compute(server)) == 1)
        until(lambda: all(b'"END"' in body for _, body in ask_all(server, "/v1/models/m")))
        load.stop()
        assert set(load.answered) == {200}
        assert not load.broken
        assert not load.refused


def test_a_worker_that_is_killed_costs_its_own_requests_and_no_more(workspace, model):
    clients = 8
    with start(workspace) as server:
        with Load(server, clients) as load:
            until(lambda: sum(load.answered.values()) > 200)
            before = workers(server)
            before[0].send_signal(signal.SIGKILL)
            until(lambda: before[0].pid not in {each.pid for each in workers(server)})
            until(lambda: len(workers(server)) == 2)
            at = sum(load.answered.values())
            until(lambda: sum(load.answered.values()) > at + 200)
        # Each client has one connection, and one request under way.
        assert len(load.broken) <= clients
        assert not load.refused
        assert set(load.answered) == {200}
        assert len(compute(server)) == 1
        # The one in its place answers like the other one.
        until(lambda: len(set(ask_all(server, "/v1/models"))) == 1)
        assert {status for status, _ in ask_all(server, load.path, BODY)} == {200}


@pytest.mark.soak
def test_metrics_keep_what_a_worker_had_counted(workspace, model):
    with start(workspace) as server:
        assert {status for status, _ in ask_all(server, "/v1/models/m:predict", BODY)} == {200}
        (_, page), *_ = ask_all(server, "/monitoring/prometheus/metrics")
        assert requests_counted(page) == MANY
        for each in workers(server):
            each.send_signal(signal.SIGKILL)
            each.wait()
        ask_all(server, "/v1/models/m:predict", BODY)
        (_, page), *_ = ask_all(server, "/monitoring/prometheus/metrics")
        assert requests_counted(page) == 2 * MANY


def test_what_one_has_plotted_is_on_the_page_of_all(workspace, model):
    def plotted(answer):
        return json.loads(answer[1])["history"]

    with start(workspace) as server:
        looking = connect(server)
        until(lambda: len(plotted(ask(looking, "/page/live"))["at"]) > 2)
        ask_all(server, "/v1/models/m:predict", BODY)
        until(lambda: sum(plotted(ask(looking, "/page/live"))["rate"]) > 0)
        until(lambda: len(plotted(ask(looking, "/page/live"))["at"]) > 6)
        totals = [sum(plotted(each)["rate"]) for each in ask_all(server, "/page/live")]
        assert min(totals) > 0
        looking.close()


@pytest.mark.soak
def test_a_compute_process_that_is_killed_comes_back_for_all(workspace, model):
    with start(workspace) as server:
        (process,) = compute(server)
        process.send_signal(signal.SIGKILL)
        path = "/v1/models/m:predict"
        until(lambda: {status for status, _ in ask_all(server, path, BODY)} == {200})
        (status,) = set(ask_all(server, "/v1/models/m"))
        assert status[0] == 200
        assert len(compute(server)) == 1
        assert len(workers(server)) == 2


def test_the_end_answers_what_is_under_way(workspace, model):
    with start(workspace) as server:
        pids = [each.pid for each in psutil.Process(server.pid).children(recursive=True)]
        slow = json.dumps({"instances": [2.0]})
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            asked = [
                pool.submit(ask, connect(server), "/v1/models/m:predict", slow) for _ in range(8)
            ]
            time.sleep(0.5)
            assert server.stop() == 0
            assert {future.result()[0] for future in asked} == {200}
        assert not [pid for pid in pids if psutil.pid_exists(pid)]


@pytest.mark.soak
def test_a_leader_that_is_killed_takes_all_along(workspace, model):
    with start(workspace) as server:
        children = psutil.Process(server.pid).children(recursive=True)
        os.kill(server.pid, signal.SIGKILL)
        _, alive = psutil.wait_procs(children, timeout=30)
        assert not alive


@pytest.mark.soak
def test_a_reload_over_grpc_holds_for_all_once_it_is_answered(workspace, model):
    publish(workspace.models / "n", 1, 5)
    access = AccessSettings(open_reload=True)
    with start(workspace, grpc_port=0, access=access) as server:
        request = model_management_pb2.ReloadConfigRequest()
        for name in ("m", "n"):
            config = request.config.model_config_list.config.add()
            config.name, config.base_path = name, str(workspace.models / name)
            config.model_platform = "tensorflow"
        with grpc.insecure_channel(server.grpc_address) as channel:
            method = channel.unary_unary(
                "/tensorflow.serving.ModelService/HandleReloadConfigRequest",
                request_serializer=type(request).SerializeToString,
                response_deserializer=model_management_pb2.ReloadConfigResponse.FromString,
            )
            assert method(request, timeout=30).status.error_code == 0
            answers = ask_all(server, "/v1/models/n:predict", BODY)
            assert {status for status, _ in answers} == {200}
            del request.config.model_config_list.config[0]
            assert method(request, timeout=30).status.error_code == 0
            assert {status for status, _ in ask_all(server, "/v1/models/m:predict", BODY)} == {404}
            # What is refused is refused for all, in the loader's words.
            request.config.model_config_list.config[0].model_platform = "other"
            with pytest.raises(grpc.RpcError, match="platform"):
                method(request, timeout=30)


@pytest.mark.soak
def test_limits_hold_for_all_together(workspace, model):
    access = AccessSettings(limits=LimitSettings(model_rate="1/h:7"))
    with start(workspace, access=access) as server:
        answers = ask_all(server, "/v1/models/m:predict", BODY)
        assert collections.Counter(status for status, _ in answers) == {200: 7, 429: MANY - 7}


@pytest.mark.soak
def test_every_worker_has_a_request_log_of_its_own(workspace, model, tmp_path):
    folder = tmp_path / "logs"
    with start(workspace, request_log=folder, request_log_rate=1.0) as server:
        ask_all(server, "/v1/models/m:predict", BODY)
    files = list(folder.glob("m-*.tfrecord"))
    assert len(files) == 2
    assert sum(len(list(read_records(path))) for path in files) == MANY


def test_a_broken_model_ends_the_start_at_once(workspace, model):
    (model / "1" / "saved_model.pb").write_text("no number")
    began = time.monotonic()
    with pytest.raises(ServingError, match="expected a version of m that can be loaded"):
        start(workspace, drain_s=300)
    # Not after the time that workers have to drain.
    assert time.monotonic() - began < 100


def test_workers_need_models_that_are_apart(workspace, model):
    with pytest.raises(SpecError, match="expected isolation process where there are 2 workers"):
        start(workspace, isolation="none")


@pytest.mark.soak
def test_a_second_server_does_not_take_a_port_that_workers_share(workspace, model):
    with start(workspace) as server:
        port = int(server.rest_url.rpartition(":")[2])
        with pytest.raises(ServingError, match=f"expected port {port} to be free"):
            start(workspace, rest_port=port)


@pytest.mark.soak
def test_a_unix_socket_is_shared_as_well(model, tmp_path):
    path = tmp_path / "grpc.sock"
    command = [sys.executable, "-m", "timonel.serving.model_server.command", "--runtime=fake"]
    log = tmp_path / "log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            [
                *command,
                "--port=0",
                f"--grpc_socket_path={path}",
                "--rest_api_port=0",
                "--workers=2",
                "--model_name=m",
                f"--model_base_path={model}",
            ],
            stdout=output,
            stderr=output,
        )
    try:
        request = get_model_status_pb2.GetModelStatusRequest()
        request.model_spec.name = "m"
        for _ in range(8):
            options = [("grpc.use_local_subchannel_pool", 1)]
            with grpc.insecure_channel(f"unix:{path}", options) as channel:
                grpc.channel_ready_future(channel).result(60)
                answer = channel.unary_unary(
                    "/tensorflow.serving.ModelService/GetModelStatus",
                    request_serializer=type(request).SerializeToString,
                    response_deserializer=(get_model_status_pb2.GetModelStatusResponse.FromString),
                )(request, timeout=30)
                assert answer.model_version_status[0].version == 1
    finally:
        server.terminate()
        assert server.wait(30) == 0, log.read_text()
    assert not path.exists()

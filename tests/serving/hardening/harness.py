"""Servers that are disturbed, clients that never pause, and what both of them use up."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import numpy as np
import psutil
import pytest

from tests.python_path import python_path
from tests.serving.asking import server_process
from tests.serving.hardening.runtime import FAULTY, NAME
from timonel.serving.launch import launch
from timonel.serving.protos.messages import predict_pb2
from timonel.serving.protos.tensors import to_proto
from timonel.serving.settings.models import LoadSettings, ModelSettings
from timonel.serving.settings.runtime import RuntimeSettings
from timonel.serving.settings.server import ServerSettings

SIZE = 64
FAST = LoadSettings(poll_s=0.05, settle_s=0.3, retry_s=0.2)


def plug_in(monkeypatch):
    """Let servers find the runtime of these tests by its name."""
    monkeypatch.setenv("PYTHONPATH", python_path(Path(__file__).parent / "plugins"))


def publish(base, number, factor=None, *, faulty=False, marked=True):
    """Make a version appear by a rename."""
    aside = base / f".tmp-{number}"
    (aside / "variables").mkdir(parents=True)
    (aside / "variables" / "data").write_bytes(bytes(SIZE))
    factor = number if factor is None else factor
    (aside / "saved_model.pb").write_text(f"{factor} {SIZE}")
    if marked:
        (aside / "assets.extra").mkdir()
        (aside / "assets.extra" / "timonel.json").write_text("{}")
    if faulty:
        (aside / FAULTY).touch()
    aside.rename(base / str(number))
    return base / str(number)


def settings_for(workspace, *names, **changes):
    """Return a server's settings, with everything quick."""
    given = {
        "models": tuple(
            ModelSettings(name=name, base_path=str(workspace.models / name)) for name in names
        ),
        "rest_port": 0,
        "grpc_port": 0,
        "load": FAST,
        "runtime": RuntimeSettings(name=NAME),
        "compute_threads": 4,
        "drain_s": 20.0,
    }
    return ServerSettings(**(given | changes))


@contextlib.contextmanager
def serving(workspace, *names, **changes):
    """Run a server; it must end in good order and leave no process."""
    with launch(settings_for(workspace, *names, **changes), workspace) as server:
        yield server
        processes = []
        if server.is_running:
            process = server_process(server)
            processes = [process, *process.children(recursive=True)]
        code = server.stop()
    assert code == 0, server.logs()[-3000:]
    gone, alive = psutil.wait_procs(processes, timeout=10)
    assert not alive, (gone, alive)
    assert "Traceback" not in server.logs(), server.logs()[-5000:]


def get(server, path):
    """Return the status and content of a page."""
    connection = http.client.HTTPConnection(server.rest_url.removeprefix("http://"), timeout=30)
    with contextlib.closing(connection):
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()


def states(server, model="m"):
    """Return the state of each version."""
    _, body = get(server, f"/v1/models/{model}")
    told = json.loads(body).get("model_version_status", [])
    return {int(each["version"]): each["state"] for each in told}


@dataclass
class Told:
    """What clients were told.

    Args:
        outcomes: How often each status was the answer, with its text if it was an error.
        values: The factors that answers were computed with.
        latencies_s: The time of each answer.
    """

    outcomes: Counter = field(default_factory=Counter)
    values: Counter = field(default_factory=Counter)
    latencies_s: list = field(default_factory=list)

    @property
    def asked(self):
        return sum(self.outcomes.values())

    @property
    def failed(self):
        return {text: count for text, count in self.outcomes.items() if text != "OK"}

    def p99_ms(self):
        return float(np.percentile(self.latencies_s, 99)) * 1000


class RestClient:
    """Asks over one connection that it keeps."""

    def __init__(self, server, model="m", body=b'{"instances": [10]}', path=":predict"):
        self._address = server.rest_url.removeprefix("http://")
        self._connection = http.client.HTTPConnection(self._address, timeout=60)
        self._path, self._body = f"/v1/models/{model}{path}", body

    def __call__(self):
        """Return ``OK`` and the factor, or an error and nothing."""
        try:
            self._connection.request("POST", self._path, self._body)
            response = self._connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            return f"{type(error).__name__}: {error}", None
        if response.status != 200:
            return f"{response.status} {content.decode(errors='replace')}", None
        (value,) = json.loads(content)["predictions"]
        return "OK", value / 10

    def close(self):
        self._connection.close()


def once(server, model="m"):
    """Ask once, over a connection of its own."""
    client = RestClient(server, model)
    try:
        return client()
    finally:
        client.close()


def predict_request(model="m", signature="", **inputs):
    """Return a PredictRequest of arrays."""
    request = predict_pb2.PredictRequest()
    request.model_spec.name = model
    request.model_spec.signature_name = signature
    for name, array in inputs.items():
        request.inputs[name].CopyFrom(to_proto(np.asarray(array)))
    return request


class GrpcClient:
    """Asks over one channel.

    Args:
        server: Whom.
        model: For what.
    """

    def __init__(self, server, model="m"):
        self._channel = grpc.insecure_channel(
            server.grpc_address, [("grpc.use_local_subchannel_pool", 1)]
        )
        self._call = self._channel.unary_unary(
            "/tensorflow.serving.PredictionService/Predict",
            response_deserializer=predict_pb2.PredictResponse.FromString,
        )
        self._request = predict_request(model, x=np.array([10], np.float32)).SerializeToString()

    def __call__(self):
        """Return ``OK`` and the factor, or an error and nothing."""
        try:
            response = self._call(self._request, timeout=60)
        except grpc.RpcError as error:
            return f"{error.code().name} {error.details()}", None
        return "OK", response.outputs["y"].float_val[0] / 10

    def close(self):
        self._channel.close()


@contextlib.contextmanager
def asking(*clients, pause_s=0.0):
    """Let clients ask without end during the block; gives what they were told."""
    told, lock, stop = Told(), threading.Lock(), threading.Event()

    def ask(client):
        while not stop.is_set():
            began = time.monotonic()
            outcome, value = client()
            took_s = time.monotonic() - began
            with lock:
                told.outcomes[outcome] += 1
                if value is not None:
                    told.values[value] += 1
                    told.latencies_s.append(took_s)
            stop.wait(pause_s)

    threads = [threading.Thread(target=ask, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    try:
        yield told
    finally:
        stop.set()
        for thread in threads:
            thread.join(90)
        for client in clients:
            client.close()
    assert not any(thread.is_alive() for thread in threads)


@dataclass(frozen=True)
class Usage:
    """What a server and its processes hold."""

    mib: float
    descriptors: int
    processes: int
    threads: int

    @classmethod
    def of(cls, server):
        front = server_process(server)
        everyone = [front, *front.children(recursive=True)]
        return cls(
            front.memory_info().rss / 2**20,
            sum(each.num_fds() for each in everyone),
            len(everyone),
            front.num_threads(),
        )

    def __str__(self):
        return (
            f"{self.mib:.0f} MiB, {self.descriptors} descriptors, {self.processes} processes, "
            f"{self.threads} threads"
        )


def settled(server, before, timeout_s=10.0):
    """Return what a server holds once it holds no more descriptors than before, or in the end."""
    deadline = time.monotonic() + timeout_s
    while True:
        usage = Usage.of(server)
        if usage.descriptors <= before.descriptors or time.monotonic() > deadline:
            return usage
        time.sleep(0.1)


needs_linux = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")

"""Hostile requests beside good clients: no death, no wrong answer, no stall, no leak.

The model has signatures whose kernels abort when a shape is not checked (convolutions), open
shapes, an open rank, strings, encoded images, several inputs and tf.Examples.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import grpc
import numpy as np
import pytest

from tests.serving.asking import server_process
from tests.serving.hardening.harness import Told, asking, predict_request, serving
from tests.serving.hardening.page import note
from tests.serving.tfserving.test_command import COMMAND, free_port
from timonel.serving.protos.messages import predict_pb2
from timonel.serving.settings.runtime import RuntimeSettings

SEED = 11
CASES = 100_000
FUZZERS = 2
WARM_UP = 1_000
FEW = 1_500
WORST_S = 0.5
GROWTH_MIB = 100
"""TensorFlow keeps some 50 of them: a pool that doubles, and oneDNN's kernels for each shape."""
REFUSED = {
    *("200", "400", "404", "413", "501"),
    *("OK", "malformed", "INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION", "UNIMPLEMENTED"),
    *("DATA_LOSS", "OUT_OF_RANGE", "RESOURCE_EXHAUSTED"),
}


@dataclass(frozen=True)
class Target:
    """A server: its processes, addresses and log."""

    pid: int
    rest_url: str
    grpc_address: str
    log: Path

    def mib(self) -> float:
        """Return what only the server's processes hold."""
        front = server_process(self)
        everyone = [front, *front.children(recursive=True)]
        return sum(each.memory_full_info().uss for each in everyone) / 2**20


@pytest.fixture(scope="module")
def export(tmp_path_factory):
    """A SavedModel in a folder of its own."""
    import tensorflow as tf

    module = tf.Module()
    module.kernel = tf.Variable(tf.random.stateless_normal([3, 3, 1, 8], [1, 2]))
    module.dense = tf.Variable(tf.random.stateless_normal([288, 4], [3, 4]))
    module.column = tf.Variable(tf.random.stateless_normal([1, 3], [5, 6]))
    signatures = {}

    def classes(image):
        features = tf.nn.relu(tf.nn.conv2d(image, module.kernel, 1, "VALID"))
        return tf.nn.softmax(tf.reshape(features, [-1, 288]) @ module.dense)

    def add(name, function, **inputs):
        specs = [tf.TensorSpec(shape, dtype, name=key) for key, (shape, dtype) in inputs.items()]
        signatures[name] = tf.function(function, input_signature=specs)
        setattr(module, f"kept_{name}", signatures[name])

    def decoded(content):
        image = tf.io.decode_image(content, channels=1, expand_animations=False)
        return tf.reshape(tf.image.resize(image, [8, 8]), [8, 8, 1]) / 255

    def images(image_bytes):
        shape = tf.TensorSpec([8, 8, 1], tf.float32)
        return {"y": classes(tf.map_fn(decoded, image_bytes, fn_output_signature=shape))}

    def of_examples(inputs):
        parsed = tf.io.parse_example(inputs, {"x": tf.io.FixedLenFeature([1], tf.float32)})
        return {"scores": parsed["x"] @ module.column}

    open_kernel = tf.ones([3, 3, 3, 2])
    add("serving_default", lambda image: {"y": classes(image)}, image=([None, 8, 8, 1], tf.float32))
    add("images", images, image_bytes=([None], tf.string))
    add("half", lambda x: {"y": x / 2 + 2}, x=([None, 1], tf.float32))
    add("dense", lambda x: {"y": tf.nn.relu(x @ module.column)}, x=([None, 1], tf.float32))
    add(
        "table",
        lambda a, b, s: {"z": tf.reduce_sum(a, 1) + tf.cast(b, tf.float32), "t": s},
        a=([None, 4], tf.float32),
        b=([None], tf.int64),
        s=([None], tf.string),
    )
    add("any_rank", lambda x: {"y": x * 2}, x=(None, tf.float32))
    add(
        "open_sizes",
        lambda x: {"y": tf.nn.conv2d(x, open_kernel, 2, "SAME")},
        x=([None, None, None, 3], tf.float32),
    )
    add("scalar", lambda n: {"n": n + 1}, n=([], tf.int32))
    add("classes", of_examples, inputs=([None], tf.string))
    folder = tmp_path_factory.mktemp("hostile") / "m" / "1"
    tf.saved_model.save(module, str(folder), signatures=signatures)
    return folder.parent


@contextlib.contextmanager
def served(kind, export, workspace, tmp_path):
    """Run a server of one kind."""
    if kind == "model-server":
        rest, rpc, log = free_port(), free_port(), tmp_path / "log"
        command = [*COMMAND, f"--port={rpc}", f"--rest_api_port={rest}", "--model_name=m"]
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*command, f"--model_base_path={export}"], stdout=output, stderr=subprocess.STDOUT
            )
        try:
            target = Target(process.pid, f"http://127.0.0.1:{rest}", f"127.0.0.1:{rpc}", log)
            _wait_for(target, process)
            yield target
            assert process.poll() is None, log.read_text(errors="replace")[-3000:]
        finally:
            process.terminate()
            assert process.wait(60) == 0
        return
    workspace.models.mkdir(parents=True, exist_ok=True)
    (workspace.models / "m").symlink_to(export)
    runtime = RuntimeSettings(name="tensorflow")
    with serving(workspace, "m", runtime=runtime) as server:
        yield Target(server.pid, server.rest_url, server.grpc_address, server.log_path)
        assert server.is_running


def _wait_for(target, process):
    deadline = time.monotonic() + 400
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            connection = http.client.HTTPConnection(target.rest_url.removeprefix("http://"))
            connection.connect()
            connection.close()
            return
        time.sleep(0.2)
    raise AssertionError(target.log.read_text(errors="replace")[-3000:])


class Good:
    """A client whose every answer must equal the first one.

    Args:
        ask: Sends one request and returns the answer.
    """

    def __init__(self, ask, close):
        self._ask = ask
        self._first = ask()
        self.close = close

    def __call__(self):
        """Return ``OK``, or what is wrong."""
        try:
            answer = self._ask()
        except (OSError, http.client.HTTPException, grpc.RpcError) as error:
            return f"{type(error).__name__}: {error}", None
        same = np.allclose(answer, self._first, rtol=1e-4, atol=1e-5)
        return ("OK", 1.0) if same else (f"wrong: {answer}", None)


def rest_client(target, path, content, key):
    connection = http.client.HTTPConnection(target.rest_url.removeprefix("http://"), timeout=60)
    body = json.dumps(content)

    def ask():
        connection.request("POST", path, body)
        response = connection.getresponse()
        answer = response.read()
        if response.status != 200:
            raise http.client.HTTPException(f"{response.status} {answer!r:.300}")
        value = json.loads(answer)[key]
        return np.asarray(value[0]["data"] if key == "outputs" else value)

    return Good(ask, connection.close)


def grpc_client(target, image):
    channel = grpc.insecure_channel(target.grpc_address)
    call = channel.unary_unary(
        "/tensorflow.serving.PredictionService/Predict",
        response_deserializer=predict_pb2.PredictResponse.FromString,
    )
    request = predict_request("m", image=image).SerializeToString()
    return Good(lambda: call(request, timeout=60).outputs["y"].float_val, channel.close)


def good_clients(target):
    """Return four: small and large over REST, the Open Inference Protocol, gRPC."""
    image = np.linspace(0, 1, 64, dtype=np.float32).reshape(1, 8, 8, 1)
    many = np.repeat(image, 200, axis=0)  # beyond what is read in the event loop
    v2 = {"name": "image", "datatype": "FP32", "shape": [1, 8, 8, 1], "data": image.tolist()}
    return [
        rest_client(target, "/v1/models/m:predict", {"instances": image.tolist()}, "predictions"),
        rest_client(target, "/v1/models/m:predict", {"instances": many.tolist()}, "predictions"),
        rest_client(target, "/v2/models/m/infer", {"inputs": [v2]}, "outputs"),
        grpc_client(target, image),
    ]


def fuzz(target, seed, count, fuzzers=1):
    """Send hostile requests from processes of their own; return how often each outcome came."""
    command = [sys.executable, "-m", "tests.serving.hardening.hostile"]
    processes = [
        subprocess.Popen(
            [*command, target.rest_url, target.grpc_address, "m", str(seed + n), str(count)],
            stdout=subprocess.PIPE,
        )
        for n in range(fuzzers)
    ]
    outcomes: Counter[str] = Counter()
    for process in processes:
        out, _ = process.communicate()
        assert process.returncode == 0
        outcomes.update(json.loads(out))
    return outcomes


def settled_mib(target, most, timeout_s=20.0):
    """Return what a server holds once that is no more than ``most``, or in the end."""
    deadline = time.monotonic() + timeout_s
    while (mib := target.mib()) > most and time.monotonic() < deadline:
        time.sleep(0.5)
    return mib


def check(target, outcomes: Counter[str], told: Told):
    unexpected = {
        outcome: count
        for outcome, count in outcomes.items()
        if outcome.rpartition(" ")[2] not in REFUSED
    }
    log = target.log.read_text(errors="replace")
    assert not unexpected, (unexpected, log[-3000:])
    assert told.failed == {}
    assert "Restarting" not in log
    assert "Traceback" not in log, log[-5000:]


@pytest.mark.process
def test_some_hostile_requests(export, workspace, tmp_path):
    with served("process", export, workspace, tmp_path) as target:
        with asking(*good_clients(target), pause_s=0.02) as told:
            outcomes = fuzz(target, SEED, FEW)
        check(target, outcomes, told)
    assert sum(outcomes.values()) == FEW


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["serve", "model-server"])
def test_very_many_hostile_requests(export, workspace, tmp_path, kind):
    with served(kind, export, workspace, tmp_path) as target:
        with asking(*good_clients(target), pause_s=0.02) as calm:
            fuzz(target, SEED - 1, WARM_UP)
        before = target.mib()
        with asking(*good_clients(target), pause_s=0.02) as told:
            outcomes = fuzz(target, SEED, CASES // FUZZERS, FUZZERS)
        after = settled_mib(target, before + GROWTH_MIB)
        check(target, outcomes, told)
    shown = ", ".join(f"{name} {count}" for name, count in sorted(outcomes.items()))
    worst_s = max(told.latencies_s)
    note(
        f"{CASES} hostile requests, seed {SEED}, {kind}",
        f"0 deaths; 4 good clients: {told.asked} requests, 0 wrong or failed, p99 "
        f"{calm.p99_ms():.0f} ms in the warm-up, {told.p99_ms():.0f} ms beside them, worst "
        f"{worst_s * 1000:.0f} ms; {before:.0f} MiB before, {after:.0f} MiB after; {shown}",
    )
    assert after < before + GROWTH_MIB
    assert worst_s < WORST_S

"""Thousands of requests that are wrong somewhere, over REST and gRPC, to servers that stay well."""

from __future__ import annotations

import http.client
import json
import random
import socket
from collections import Counter

import grpc
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from tests.serving.hardening import grammar
from tests.serving.hardening.harness import (
    GrpcClient,
    RestClient,
    Usage,
    predict_request,
    serving,
    settled,
)
from tests.serving.hardening.page import note
from tests.serving.hardening.runtime import SIGNATURES
from tests.serving.protocols.tfs_grpc.conftest import RESPONSES
from tests.serving.protocols.tfs_grpc.test_mutated import MALFORMED, mutated, originals
from timonel.serving.settings.server import RestSettings
from timonel.serving.signature import NUMPY_TYPES

pytestmark = pytest.mark.soak

REST_CASES, GRPC_CASES, HEAD_CASES = 5_000, 9_000, 1_000
NOT_OURS = {501}
"""What a type that JSON has no place for is answered, as TensorFlow Serving does."""


class Raw:
    """One connection that any bytes are sent over; opened again when the server closes it."""

    def __init__(self, server):
        host, _, port = server.rest_url.rpartition("/")[2].rpartition(":")
        self._address = (host, int(port))
        self._socket = None

    def ask(self, method, content):
        """Return the status and the body."""
        if self._socket is None:
            self._socket = socket.create_connection(self._address, 30)
        self._socket.sendall(content)
        response = http.client.HTTPResponse(self._socket, method=method)
        response.begin()
        answer = response.status, response.read()
        if response.will_close:
            self.close()
        return answer

    def close(self):
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def is_well(server):
    client, rpc = RestClient(server), GrpcClient(server)
    try:
        return client() == rpc() == ("OK", 1.0)
    finally:
        client.close()
        rpc.close()


def check_holdings(what, cases, codes, before, after):
    assert after.mib < before.mib + 40, (before, after)
    assert after.descriptors <= before.descriptors + 2
    assert after.processes == before.processes
    shown = ", ".join(f"{code} {count}" for code, count in sorted(codes.items()))
    note(what, f"{cases} cases: {shown}; {before} before, {after} after")


@pytest.mark.parametrize("extensions", [True, False])
def test_rest(workspace, m, extensions):
    codes = Counter()
    with serving(workspace, "m", rest=RestSettings(extensions=extensions)) as server:
        raw = Raw(server)
        assert is_well(server)

        @settings(
            max_examples=REST_CASES // 2,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
        )
        @given(grammar.requests())
        def ask(request):
            status, body = raw.ask(request.method, request.encoded())
            codes[status] += 1
            assert status < 500 or status in NOT_OURS, (status, body)
            if status >= 400 and request.target.startswith("/v1/") and body:
                assert json.loads(body)["error"]

        before = Usage.of(server)
        ask()
        raw.close()
        after = settled(server, before)
        assert is_well(server)
    name = "REST by a grammar" + ("" if extensions else ", without extensions")
    check_holdings(name, sum(codes.values()), codes, before, after)


def test_heads_of_any_bytes(workspace, m):
    chance = random.Random(5)
    head = b"POST /v1/models/m:predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 19\r\n\r\n"
    codes = Counter()
    with serving(workspace, "m") as server:
        host, _, port = server.rest_url.rpartition("/")[2].rpartition(":")
        before = Usage.of(server)
        for _ in range(HEAD_CASES):
            with socket.create_connection((host, int(port)), 10) as connection:
                connection.sendall(mutated(head, chance) + b'{"instances": [10]}')
                connection.settimeout(0.05)
                try:
                    answer = connection.recv(12)
                except TimeoutError:
                    answer = b"HTTP/1.1 waits"
                except ConnectionError:
                    answer = b"HTTP/1.1 reset"
                codes[answer[9:].decode() or "closed"] += 1
        after = settled(server, before)
        assert is_well(server)
    assert not [code for code in codes if code.startswith("5")], codes
    check_holdings("heads of HTTP with changed bytes", HEAD_CASES, codes, before, after)


def _requests():
    """One of each method, and of Predict one for each type."""
    found = list(originals().items())
    for signature, spec in SIGNATURES.items():
        if not signature.startswith("echo_"):
            continue
        array = np.zeros((2, 3), NUMPY_TYPES[spec.inputs["x"].dtype])
        if array.dtype == object:
            array[:] = b"text"
        request = predict_request("m", signature, x=array)
        found.append(("Predict", request))
    return found


SIZES = (-2, -1, 0, 1, 2, 3, 6, 2**31, 2**62, 2**63 - 1)


def _change_spec(request, chance):
    spec = request.model_spec if hasattr(request, "model_spec") else request.tasks[0].model_spec
    name, value = chance.choice(
        [
            ("name", "m"),
            ("name", chance.choice(["", "x", "\0", "m" * 5000])),
            ("signature_name", chance.choice([*SIGNATURES, "", "x" * 3000])),
            ("version_label", chance.choice(["", "stable", "\N{SNOWMAN}"])),
            ("version", chance.choice([1, 0, -1, 2**63 - 1])),
        ]
    )
    if name == "version":
        spec.version.value = value
    else:
        setattr(spec, name, value)


def _change_tensor(request, chance):
    if not getattr(request, "inputs", None):
        return
    tensor = request.inputs[chance.choice(sorted(request.inputs))]
    kind = chance.randrange(8)
    if kind == 0:
        tensor.dtype = chance.randrange(-1, 140)
    elif kind == 1:
        tensor.tensor_shape.dim.add(size=chance.choice(SIZES))
    elif kind == 2 and tensor.tensor_shape.dim:
        tensor.tensor_shape.dim[0].size = chance.choice(SIZES)
    elif kind == 3:
        tensor.tensor_shape.unknown_rank = True
    elif kind == 4:
        tensor.tensor_content = chance.randbytes(chance.choice((0, 1, 4, 24, 100)))
    elif kind == 5:
        tensor.float_val.extend([1.5] * chance.randrange(20))
    elif kind == 6:
        tensor.string_val.append(chance.randbytes(3))
    else:
        tensor.tensor_shape.Clear()


def _change_names(request, chance):
    if hasattr(request, "output_filter"):
        request.output_filter.append(chance.choice(["x", "y", "", "x" * 3000]))
    if hasattr(request, "inputs"):
        key = chance.choice(["x", "z", "", "k" * 3000])
        request.inputs[key].CopyFrom(request.inputs[chance.choice(sorted(request.inputs))])
    if hasattr(request, "tasks"):
        request.tasks.add().CopyFrom(request.tasks[0])
        request.tasks[-1].method_name = chance.choice(["", "tensorflow/serving/regress", "x"])
    if hasattr(request, "metadata_field"):
        request.metadata_field.append(chance.choice(["signature_def", "x" * 3000]))


def perturbed(message, chance):
    """Return a message of the same type, well formed but with another meaning."""
    changed = type(message)()
    changed.CopyFrom(message)
    for _ in range(chance.randint(1, 3)):
        chance.choice([_change_spec, _change_tensor, _change_tensor, _change_names])(
            changed, chance
        )
    return changed.SerializeToString()


def test_grpc(workspace, m):
    chance, codes = random.Random(7), Counter()
    refused = {"FAILED_PRECONDITION", "INVALID_ARGUMENT", "NOT_FOUND", "UNIMPLEMENTED"}
    requests = [each for each in _requests() if each[0] != "HandleReloadConfigRequest"]
    with (
        serving(workspace, "m") as server,
        grpc.insecure_channel(server.grpc_address) as channel,
    ):
        calls = {
            name: channel.unary_unary(f"/tensorflow.serving.{service}/{name}")
            for service, methods in RESPONSES.items()
            for name in methods
        }
        assert is_well(server)
        before = Usage.of(server)
        for _ in range(GRPC_CASES // 2):
            name, content = chance.choice(requests)
            if chance.random() < 0.7:
                raw = perturbed(content, chance)
            else:
                raw = mutated(content.SerializeToString(), chance)
            try:
                calls[name](raw, timeout=30)
                codes["OK"] += 1
            except grpc.RpcError as error:
                found = (error.code().name, error.details())
                codes[found[0]] += 1
                assert found == MALFORMED or found[0] in refused, (name, raw, found)
        after = settled(server, before)
        assert is_well(server)
    name = "gRPC with changed bytes"
    check_holdings(name, GRPC_CASES // 2, codes, before, after)

"""The command with real models, and what clients of TensorFlow Serving send it."""

from __future__ import annotations

import http.client
import json
import subprocess
import time

import grpc
import pytest

from tests.serving.tfserving.test_command import COMMAND, free_port

HALF, MODULE, KERAS = "half_plus_two", "module", "keras"


def config(folder, *entries):
    listed = "".join(
        f'config {{ name: "{name}" base_path: "{folder / name}" model_platform: "tensorflow" '
        f"{more} }}\n"
        for name, more in entries
    )
    return f"model_config_list {{\n{listed}}}\n"


class Process:
    """The command with some flags."""

    def __init__(self, folder, *arguments, rest=True):
        self.port, self.grpc_port = free_port(), free_port()
        self.log = folder / f"log-{self.port}"
        self.folder = folder
        ports = [f"--port={self.grpc_port}", f"--grpc_socket_path={folder}/{self.port}.sock"]
        ports += [f"--rest_api_port={self.port}"] if rest else []
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*COMMAND, *ports, *arguments], stdout=log, stderr=subprocess.STDOUT
            )

    def __enter__(self):
        deadline = time.monotonic() + 400
        while True:
            try:
                with http_connection(self.port) as connection:
                    connection.connect()
            except ConnectionRefusedError:
                assert self.process.poll() is None, self.log.read_text()
                assert time.monotonic() < deadline, self.log.read_text()
                time.sleep(0.1)
            else:
                return self

    def __exit__(self, *_):
        self.process.terminate()
        assert self.process.wait(60) == 0, self.log.read_text()

    def ask(self, method, path, body=None, headers=()):
        """Return the status, the headers and the content."""
        with http_connection(self.port) as connection:
            connection.request(method, path, body, dict(headers))
            response = connection.getresponse()
            content = response.read()
            return response.status, dict(response.getheaders()), content


class http_connection:  # noqa: N801 - a context manager
    def __init__(self, port):
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def __enter__(self):
        return self._connection

    def __exit__(self, *_):
        self._connection.close()


def post(server, path, content, **headers):
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    status, _, answer = server.ask("POST", f"/v1/models/{path}", body, headers)
    return status, json.loads(answer) if answer else None


def error_of(server, path, content):
    status, answer = post(server, path, content)
    assert status >= 400, answer
    return status, answer["error"]


def predict_request(model, signature="", **inputs):
    import tensorflow as tf
    from tensorflow_serving.apis import predict_pb2

    request = predict_pb2.PredictRequest()
    request.model_spec.name = model
    request.model_spec.signature_name = signature
    for name, value in inputs.items():
        request.inputs[name].CopyFrom(tf.make_tensor_proto(value))
    return request


def refusal(call, request):
    with pytest.raises(grpc.RpcError) as caught:
        call(request, timeout=60)
    return caught.value.code().name, caught.value.details()


def reload_request(text):
    from google.protobuf import text_format
    from tensorflow_serving.apis import model_management_pb2
    from tensorflow_serving.config import model_server_config_pb2

    request = model_management_pb2.ReloadConfigRequest()
    request.config.CopyFrom(text_format.Parse(text, model_server_config_pb2.ModelServerConfig()))
    return request


def states(server, model=HALF):
    _, _, body = server.ask("GET", f"/v1/models/{model}")
    told = json.loads(body).get("model_version_status", [])
    return {each["version"]: each["state"] for each in told}

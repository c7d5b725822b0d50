"""The command as start scripts see it: its output, exit status and ports, with the fake runtime."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import grpc
import pytest

from tests.serving.manager.test_manager import publish
from timonel.serving.manager.model_config import parse_model_config
from timonel.serving.protos.messages import model_management_pb2
from timonel.serving.tfserving.command import main

COMMAND = [sys.executable, "-m", "timonel.serving.tfserving.command"]


pytestmark = pytest.mark.usefixtures("fake_runtime")


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


class Running:
    """A server of the command."""

    def __init__(self, tmp_path, *arguments):
        self.port, self.grpc = free_port(), f"unix:{tmp_path}/grpc.sock"
        self.log = tmp_path / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    *COMMAND,
                    "--port=0",
                    f"--grpc_socket_path={tmp_path}/grpc.sock",
                    f"--rest_api_port={self.port}",
                    "--runtime=fake",
                    *arguments,
                ],
                stdout=log,
                stderr=log,
            )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        assert self.process.wait(30) == 0, self.log.read_text()

    def get(self, path):
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.port}{path}", timeout=30
            ) as response:
                return json.loads(response.read())
        except urllib.error.HTTPError as error:
            with error:
                return json.loads(error.read())

    def states(self, name):
        answer = self.get(f"/v1/models/{name}")
        listed = answer.get("model_version_status", [])
        return {each["version"]: each["state"] for each in listed}

    def until(self, condition):
        deadline = time.monotonic() + 40
        while True:
            try:
                if condition():
                    return
            except (urllib.error.URLError, ConnectionError):
                assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)

    def reload(self, text):
        request = model_management_pb2.ReloadConfigRequest()
        request.config.CopyFrom(parse_model_config(text, "test"))
        with grpc.insecure_channel(self.grpc) as channel:
            call = channel.unary_unary(
                "/tensorflow.serving.ModelService/HandleReloadConfigRequest",
                request_serializer=model_management_pb2.ReloadConfigRequest.SerializeToString,
                response_deserializer=model_management_pb2.ReloadConfigResponse.FromString,
            )
            return call(request, timeout=30)


def config(tmp_path, *names, more=""):
    listed = "".join(
        f'config {{ name: "{name}" base_path: "{tmp_path}/{name}" model_platform: "tensorflow" '
        f"{more} }}\n"
        for name in names
    )
    return f"model_config_list {{ {listed} }}"


def test_version_and_usage(capsys):
    assert main(["--version", "--port=1"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("TensorFlow ModelServer: ")
    assert second.startswith("TensorFlow Library: 2.")
    assert main(["--port=many"]) == 255
    told = capsys.readouterr()
    assert told.out.startswith("usage: timonel-model-server\nFlags:\n\t--port=8500")
    assert told.err == "Couldn't interpret value many for flag port.\n"


def test_starts_that_fail_at_once(tmp_path, capsys):
    assert main([]) == 255
    assert capsys.readouterr().out == (
        "Failed to start server. Error: INVALID_ARGUMENT: Both server_options.model_base_path and "
        "server_options.model_config_file are empty!\n"
    )
    path = tmp_path / "models.config"
    path.write_text("model_config_list { nonsense }")
    assert main([f"--model_config_file={path}"]) == 255
    told = capsys.readouterr()
    assert told.out == (
        f"Failed to start server. Error: INVALID_ARGUMENT: Invalid protobuf file: '{path}'\n"
    )
    assert told.err.startswith(
        "Error parsing text-format tensorflow.serving.ModelServerConfig: 1:21: "
    )


@pytest.mark.process
def test_a_model_that_cannot_be_loaded_ends_the_start(tmp_path):
    broken = publish(tmp_path / "m", 3, "no number")
    done = subprocess.run(
        [
            *COMMAND,
            "--runtime=fake",
            "--port=0",
            f"--grpc_socket_path={tmp_path}/s",
            "--model_name=m",
            f"--model_base_path={tmp_path}/m",
            "--max_num_load_retries=0",
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (
        255,
        "Failed to start server. Error: UNKNOWN: 1 servable(s) did not become available: "  # noqa: ISC004
        f"{{{{{{name: m version: 3}} due to error: DATA_LOSS: damaged model in {broken}}}, }}\n",
    )


@pytest.mark.process
def test_the_model_of_the_variables_of_tensorflow_servings_image(tmp_path, monkeypatch):
    publish(tmp_path / "digits", 3)
    monkeypatch.setenv("MODEL_NAME", "digits")
    monkeypatch.setenv("MODEL_BASE_PATH", str(tmp_path))
    with Running(tmp_path) as server:
        server.until(lambda: server.states("digits") == {"3": "AVAILABLE"})


@pytest.mark.process
def test_it_waits_for_its_first_version_then_takes_other_models_by_call(tmp_path):
    arguments = ["--nope=1", f"--model_base_path={tmp_path}/a", "--model_name=a"]
    with Running(tmp_path, *arguments, "--enable_profiler") as server:
        server.until(lambda: ": cannot read" in server.log.read_text())
        with pytest.raises(urllib.error.URLError):
            server.get("/v1/models/a")
        for name in ("a", "b"):
            publish(tmp_path / name, 1)
        server.until(lambda: server.states("a") == {"1": "AVAILABLE"})
        text = server.log.read_text()
        assert "unknown argument: --nope=1\nusage: timonel-model-server\n" in text
        assert "--enable_profiler has no effect" in text
        assert server.reload(config(tmp_path, "a", "b")).status.error_code == 0
        assert server.states("a") == server.states("b") == {"1": "AVAILABLE"}
        labels = 'version_labels { key: "stable" value: 1 }'
        server.reload(config(tmp_path, "a", more=labels))
        server.until(lambda: server.states("b") == {"1": "END"})
        with pytest.raises(grpc.RpcError) as caught:
            server.reload(config(tmp_path, "a", more=labels.replace("1", "2")))
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION


@pytest.mark.process
def test_a_configuration_file_is_followed_and_a_poll_period_of_zero_hangs_nobody(tmp_path):
    for name in ("a", "b"):
        publish(tmp_path / name, 1)
    path = tmp_path / "models.config"
    path.write_text("")
    arguments = [
        f"--model_config_file={path}",
        "--model_config_file_poll_wait_seconds=1",
        "--file_system_poll_wait_seconds=0",
    ]
    with Running(tmp_path, *arguments) as server:
        server.until(lambda: "Could not find" in server.get("/v1/models/a")["error"])
        path.write_text(config(tmp_path, "a"))
        server.until(lambda: server.states("a") == {"1": "AVAILABLE"})
        path.write_text(config(tmp_path, "b", "gone"))
        server.until(lambda: server.states("b") == {"1": "AVAILABLE"})
        server.until(lambda: server.states("a") == {"1": "END"})
        with pytest.raises(grpc.RpcError) as caught:
            server.reload(config(tmp_path, "b", "lost"))
        assert caught.value.code() is grpc.StatusCode.UNKNOWN
        assert caught.value.details().startswith("1 model(s) did not become available: {{{name: l")

"""How the command starts, ends and listens (1, 9, 10), and what is asked for in vain (13)."""

from __future__ import annotations

import json
import shutil
import subprocess
import time

import grpc
import numpy as np
import pytest

from tests.serving.tfserving.checklist.harness import (
    HALF,
    Process,
    config,
    post,
    predict_request,
    refusal,
    states,
)
from tests.serving.tfserving.test_command import COMMAND, free_port
from tests.waiting import until

pytestmark = pytest.mark.soak


def run_to_the_end(*arguments, timeout=600):
    done = subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, check=False, timeout=timeout
    )
    return done.returncode, done.stdout, done.stderr


def test_starts_that_end(exported, tmp_path):
    base = f"--model_base_path={exported}/{HALF}"
    code, out, _ = run_to_the_end("--version")
    assert code == 0
    assert [line.partition(":")[0] for line in out.splitlines()] == [
        "TensorFlow ModelServer",
        "TensorFlow Library",
    ]
    code, out, _ = run_to_the_end("--port=abc", base)
    assert code == 255
    assert "usage:" in out
    parameters = tmp_path / "batching.config"
    parameters.write_text("max_batch_size { value: 4 }")
    code, out, _ = run_to_the_end(f"--batching_parameters_file={parameters}", base)
    assert code == 255
    assert "enable_batching" in out
    parameters.write_text("max_batch_size: nonsense")
    code, out, _ = run_to_the_end(
        f"--batching_parameters_file={parameters}", "--enable_batching", base
    )
    assert code == 255
    assert f"INVALID_ARGUMENT: Invalid protobuf file: '{parameters}'" in out
    every = [f"--tensorflow_{kind}_parallelism=1" for kind in ("session", "intra_op", "inter_op")]
    assert run_to_the_end(*every, base)[0] == 255
    assert run_to_the_end("--port=0", base)[0] == 255
    assert run_to_the_end("--model_base_path=relative")[0] == 255
    # A label in the first configuration, without the flag that allows it.
    models = tmp_path / "models.config"
    label = 'version_labels { key: "stable" value: 123 }'
    models.write_text(config(exported, (HALF, label)))
    code, out, _ = run_to_the_end(f"--model_config_file={models}", f"--port={free_port()}")
    assert code == 255
    assert out.startswith(
        "Failed to start server. Error: FAILED_PRECONDITION: Request to assign label to version "
        f"123 of model {HALF}, which is not currently available for inference"
    )
    # A model that cannot be loaded ends the start, once its retries are used up.
    broken = tmp_path / "broken"
    (broken / "3").mkdir(parents=True)
    code, out, _ = run_to_the_end(
        f"--model_base_path={broken}",
        "--model_name=b",
        f"--port={free_port()}",
        "--max_num_load_retries=1",
        "--load_retry_interval_micros=1000",
    )
    assert code == 255
    assert out.startswith(
        "Failed to start server. Error: UNKNOWN: 1 servable(s) did not become available: "
        "{{{name: b version: 3} due to error: NOT_FOUND: Specified file path does not appear to "
        "contain a SavedModel bundle (should have a file called `saved_model.pb`)\n"
        f"Specified file path: {broken}/3"
    )


def test_tls_with_client_certificates(exported, tmp_path):
    from tests.serving.auth.certificates import Authority

    authority = Authority()
    certificate, key = authority.issue(tmp_path, "server")
    client_certificate, client_key = authority.issue(tmp_path, "client")
    ca = authority.pem.decode()
    text = (
        f"server_key: {json.dumps(key.read_text())}\n"
        f"server_cert: {json.dumps(certificate.read_text())}\n"
        f"custom_ca: {json.dumps(ca)}\nclient_verify: true\n"
    )
    (tmp_path / "ssl.config").write_text(text)
    arguments = [
        f"--ssl_config_file={tmp_path}/ssl.config",
        f"--model_base_path={exported}/{HALF}",
        f"--model_name={HALF}",
        "--grpc_channel_arguments=grpc.max_concurrent_streams=9,grpc.unknown=x",
        "--nope=5",
    ]
    with Process(tmp_path, *arguments) as server:
        # REST stays as it is.
        assert post(server, f"{HALF}:predict", {"instances": [1.0]})[0] == 200
        assert "unknown argument: --nope=5" in server.log.read_text()
        call = "/tensorflow.serving.PredictionService/Predict"
        content = predict_request(HALF, x=np.float32([1])).SerializeToString()
        address = f"localhost:{server.grpc_port}"
        pair = (client_key.read_bytes(), client_certificate.read_bytes())
        with grpc.secure_channel(
            address, grpc.ssl_channel_credentials(ca.encode(), *pair)
        ) as channel:
            assert channel.unary_unary(call)(content, timeout=30)
        with grpc.secure_channel(address, grpc.ssl_channel_credentials(ca.encode())) as channel:
            assert refusal(channel.unary_unary(call), content)[0] == "UNAVAILABLE"


def test_weaknesses_of_the_model_are_not_ours(exported, tmp_path):
    """Half-written versions, gone folders, waiting retries, reloads without polling, SIGTERM."""
    good, bad = tmp_path / "good", tmp_path / "bad"
    shutil.copytree(exported / HALF / "00000123", good / "1")
    shutil.copytree(exported / HALF / "00000123", bad / "1")
    (tmp_path / "models.config").write_text(config(tmp_path, ("good", ""), ("bad", "")))
    arguments = [
        f"--model_config_file={tmp_path}/models.config",
        "--load_retry_interval_micros=60000000",
        "--rest_api_num_threads=1",
    ]
    with Process(tmp_path, *arguments) as server:
        # A broken version, whose retries wait a minute, holds up no other model (5).
        (bad / "2").mkdir()
        (bad / "2" / "saved_model.pb").write_bytes(b"nonsense")
        until(lambda: states(server, "bad").get("2") == "LOADING")
        # A folder that goes away does not stop the polling of others.
        bad.rename(tmp_path / "gone")  # at once: an empty folder would unload its versions
        # A version that is copied slowly is loaded when it is there.
        source = exported / HALF / "00000123"
        (good / "2" / "variables").mkdir(parents=True)
        for path in sorted(source.rglob("*")):
            if path.is_file():
                time.sleep(0.6)
                shutil.copy(path, good / "2" / path.relative_to(source))
        began = time.monotonic()
        until(lambda: states(server, "good").get("2") == "AVAILABLE")
        assert time.monotonic() - began < 20
        assert "Cannot load version 2 of model good" not in server.log.read_text()
        assert post(server, "good:predict", {"instances": [1.0]})[0] == 200
        assert post(server, "bad:predict", {"instances": [1.0]})[0] == 200
        # Both answer, and tell whether they serve, without a model's name.
        for path in ("/livez", "/readyz"):
            assert server.ask("GET", path)[0] == 200
    # SIGTERM ended it with exit status 0.

"""Models, labels and versions that change under a server (3 to 5)."""

from __future__ import annotations

import shutil
import struct

import grpc
import numpy as np
import pytest

from tests.serving.tfserving.checklist.harness import (
    HALF,
    config,
    post,
    predict_request,
    refusal,
    reload_request,
    states,
)
from tests.waiting import until

pytestmark = pytest.mark.soak


def test_flags_that_change_answers(changing):
    status, headers, _ = changing.ask("GET", f"/v1/models/{HALF}")
    assert status == 200
    assert headers["access-control-allow-origin"] == "*"
    assert headers["access-control-allow-methods"] == "POST, GET"
    assert headers["access-control-allow-headers"] == "Content-Type"
    from tensorflow_serving.apis import prediction_service_pb2_grpc

    with grpc.insecure_channel(f"127.0.0.1:{changing.grpc_port}") as channel:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        output = stub.Predict(predict_request(HALF, x=np.float32([[1]]))).outputs["y"]
    assert not output.float_val
    assert output.tensor_content == struct.pack("<f", 2.5)
    assert changing.ask("GET", "/monitoring/prometheus/metrics")[0] == 404


def test_reloads_labels_and_policies(changing, reload):
    folder = changing.folder

    def both_are(state):  # other tests leave versions that have ended
        found = states(changing)
        return found.get("1") == found.get("2") == state

    label = 'version_labels { key: "canary" value: 2 }'
    assert refusal(reload, reload_request(config(folder, (HALF, label)))) == (
        "FAILED_PRECONDITION",
        (
            f"Request to assign label to version 2 of model {HALF}, which is not currently "
            "available for inference"
        ),
    )
    twice = config(folder, (HALF, ""), (HALF, ""))
    assert refusal(reload, reload_request(twice)) == (
        "INVALID_ARGUMENT",
        f"Illegal to list model {HALF} multiple times in config list",
    )
    relative = reload_request(config(folder, (HALF, "")))
    relative.config.model_config_list.config[0].base_path = "models"
    assert refusal(reload, relative) == (
        "INVALID_ARGUMENT",
        f"Expected model {HALF} to have an absolute path or URI; got base_path()=models",
    )
    other = reload_request(config(folder, (HALF, "")))
    other.config.model_config_list.config[0].model_platform = "pytorch"
    assert refusal(reload, other)[0] == "INVALID_ARGUMENT"
    other.config.model_config_list.config[0].model_platform = ""
    assert refusal(reload, other) == (
        "INVALID_ARGUMENT",
        (
            "Illegal setting neither ModelServerConfig::model_type (deprecated) nor "
            f"ModelServerConfig::model_platform, model name is {HALF}"
        ),
    )
    logged = config(folder, (HALF, "logging_config { sampling_config { sampling_rate: 1 } }"))
    code, _ = refusal(reload, reload_request(logged))
    assert code == "INVALID_ARGUMENT"
    both = "model_version_policy { specific { versions: 1 versions: 2 } }"
    shutil.copytree(folder / HALF / "1", folder / HALF / "2")
    assert reload(reload_request(config(folder, (HALF, both)))).status.error_code == 0
    until(lambda: both_are("AVAILABLE"))
    reload(reload_request(config(folder, (HALF, both + label))))
    assert post(changing, f"{HALF}/labels/canary:predict", {"instances": [[1.0]]})[0] == 200
    reload(reload_request(config(folder)))
    until(lambda: both_are("END"))
    status, answer = post(changing, f"{HALF}:predict", {"instances": [[1.0]]})
    assert (status, answer) == (404, {"error": f"Servable not found for request: Latest({HALF})"})
    lost = config(folder, ("lost", ""))
    (folder / "lost" / "1").mkdir(parents=True)
    code, text = refusal(reload, reload_request(lost))
    assert code == "UNKNOWN"
    assert text.startswith("1 model(s) did not become available: {{{name: lost version: 1} due to")
    assert "Specified file path does not appear to contain a SavedModel bundle" in text
    reload(reload_request(config(folder, (HALF, ""))))
    until(lambda: states(changing)["2"] == "AVAILABLE")


def test_versions_come_go_and_are_rolled_back(changing, reload):
    folder = changing.folder / HALF
    reload(reload_request(config(changing.folder, (HALF, ""))))
    shutil.copytree(folder / "1", changing.folder / "aside")
    (changing.folder / "aside").rename(folder / "0000000009")
    until(lambda: states(changing).get("9") == "AVAILABLE")
    until(lambda: "AVAILABLE" not in {states(changing).get("1"), states(changing).get("2")})
    shutil.rmtree(folder / "0000000009")
    newest = max(int(path.name) for path in folder.iterdir())
    until(lambda: states(changing).get(str(newest)) == "AVAILABLE")
    until(lambda: states(changing)["9"] == "END")
    # A bad version: the one before goes on, and the status tells why.
    (folder / "11").mkdir()
    (folder / "11" / "saved_model.pb").write_bytes(b"nonsense")
    until(lambda: states(changing).get("11") == "END")
    assert states(changing)[str(newest)] == "AVAILABLE"
    shutil.rmtree(folder / "11")

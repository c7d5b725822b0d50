"""One server of real models, asked over both of its skins by stock clients."""

from __future__ import annotations

import base64
import gzip
import http.client
import json
import shutil
import subprocess
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pytest
from google.protobuf import json_format

from tests.serving.conftest import publish
from tests.waiting import until
from timonel.models.repository import workspace_models
from timonel.serving import curl_example, predict, running_servers, serve
from timonel.serving.protocols.v2.service import SERVICE, message_class
from timonel.storage import find_workspace

pytestmark = pytest.mark.process

SWAPS = 12


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return find_workspace(tmp_path_factory.mktemp("served") / "workspace")


@pytest.fixture(scope="module")
def server(exports, place):
    for name in ("doubler", "images", "table", "shapes", "dense"):
        (place.models / name).mkdir()
        publish(
            exports / name,
            place.models / name,
            1,
            labels=("cat", "dog") if name == "images" else (),
        )
    (place.models / "versioned").mkdir()
    publish(exports / "versioned-1", place.models / "versioned", 1)
    names = ["doubler", "images", "table", "shapes", "dense", "versioned"]
    with serve(
        names, workspace=place, rest_port=0, grpc_port=0, block=False, poll_s=0.1
    ) as started:
        yield started
    assert not running_servers(place.servers)


def rest(server, path, content=None, headers=(), method=None):
    body = content if isinstance(content, bytes | None) else json.dumps(content).encode()
    request = urllib.request.Request(
        server.rest_url + path, data=body, headers=dict(headers), method=method
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, json.loads(response.read() or b"null")
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


@pytest.fixture(scope="module")
def stubs(server):
    from tensorflow_serving.apis import model_service_pb2_grpc, prediction_service_pb2_grpc

    options = [("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(server.grpc_address, options) as channel:
        yield (
            prediction_service_pb2_grpc.PredictionServiceStub(channel),
            model_service_pb2_grpc.ModelServiceStub(channel),
            channel,
        )


def test_the_open_inference_protocol_over_rest(server, png):
    status, model = rest(server, "/v2/models/images")
    assert (status, model["inputs"]) == (
        200,
        [{"name": "image_bytes", "datatype": "BYTES", "shape": [-1]}],
    )
    content = b"".join(len(png(w)).to_bytes(4, "little") + png(w) for w in (True, False))
    tensor = {**model["inputs"][0], "shape": [2], "parameters": {"binary_data_size": len(content)}}
    head = json.dumps({"inputs": [tensor], "outputs": [{"name": "label"}]}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))}
    status, answer = rest(server, "/v2/models/images/infer", head + content, headers)
    assert (status, answer["outputs"][0]["data"]) == (200, ["dog", "cat"])
    values = {"age": ("FP32", [2]), "name": ("BYTES", ["ab"]), "seats": ("FP32", [[3]])}
    asked = [
        {"name": name, "datatype": datatype, "shape": np.shape(data), "data": data}
        for name, (datatype, data) in values.items()
    ]
    status, answer = rest(server, "/v2/models/table/infer", {"inputs": asked})
    assert (status, answer["outputs"][0]["data"]) == (200, [9.0])
    wrong = {"inputs": [{**asked[0], "name": "x", "shape": [1]}]}
    status, answer = rest(server, "/v2/models/doubler/infer", wrong)
    assert (status, answer) == (
        400,
        {"error": "Input x has the wrong shape: expected shape [-1, 2], got [1]"},
    )


def test_the_open_inference_protocol_over_grpc(stubs, png):
    _, _, channel = stubs
    request = message_class("ModelInferRequest")(model_name="images", id="7")
    request.inputs.add(name="image_bytes", datatype="BYTES", shape=[1])
    request.raw_input_contents.append(len(png()).to_bytes(4, "little") + png())
    infer = channel.unary_unary(f"/{SERVICE}/ModelInfer")
    answer = message_class("ModelInferResponse").FromString(infer(request.SerializeToString()))
    contents = {
        output.name: raw
        for output, raw in zip(answer.outputs, answer.raw_output_contents, strict=True)
    }
    assert (answer.id, answer.model_version) == ("7", "1")
    assert contents == {
        "label": b"\3\0\0\0dog",
        "scores": np.float32([0, 1]).tobytes(),
    }


def predict_request(model, **inputs):
    import tensorflow as tf
    from tensorflow_serving.apis import predict_pb2

    request = predict_pb2.PredictRequest()
    request.model_spec.name = model
    for name, value in inputs.items():
        request.inputs[name].CopyFrom(tf.make_tensor_proto(value))
    return request


# REST


def test_rows_and_columns(server):
    path = "/v1/models/doubler:predict"
    assert rest(server, path, {"instances": [[1, 2], [3, 4]]}) == (
        200,
        {
            "predictions": [
                {"doubled": [2.0, 4.0], "text": "1.000000"},
                {"doubled": [6.0, 8.0], "text": "3.000000"},
            ]
        },
    )
    assert rest(server, path, {"inputs": {"x": [[1, 2]]}}) == (
        200,
        {"outputs": {"doubled": [[2.0, 4.0]], "text": ["1.000000"]}},
    )
    assert rest(server, "/v1/models/doubler/versions/1:predict", {"inputs": [[1, 2]]})[0] == 200


def test_named_inputs_images_and_scalars(server, png):
    row = {"age": 20, "name": "Ada", "seats": [2.5]}
    assert rest(server, "/v1/models/table:predict", {"instances": [row]}) == (
        200,
        {"predictions": [45.5]},
    )
    image = {"b64": base64.b64encode(png()).decode()}
    assert rest(server, "/v1/models/images:predict", {"instances": [image]}) == (
        200,
        {"predictions": [{"label": "dog", "scores": [0.0, 1.0]}]},
    )
    status, answer = rest(server, "/v1/models/shapes:predict", {"inputs": 3})
    assert status == 200
    assert answer["outputs"]["raw_bytes"] == {"b64": "/wA="}
    assert np.isnan(answer["outputs"].pop("nan"))
    assert answer["outputs"] == {"squared": 9, "range": [0, 1, 2], "raw_bytes": {"b64": "/wA="}}


def test_a_compressed_body(server):
    body = gzip.compress(b'{"instances": [[1, 2]]}')
    path = "/v1/models/doubler:predict"
    assert rest(server, path, body, {"Content-Encoding": "gzip"})[0] == 200
    assert rest(server, path, body[:-9], {"Content-Encoding": "gzip"}) == (
        400,
        {"error": "JSON Parse error: The document is empty"},
    )


@pytest.mark.parametrize(
    ("path", "content", "status", "message"),
    [
        ("doubler:predict", b"", 400, "JSON Parse error: The document is empty"),
        ("nope:predict", b"", 400, "JSON Parse error: The document is empty"),
        ("nope:predict", {}, 404, "Servable not found for request: Latest(nope)"),
        (
            "doubler/versions/7:predict",
            {},
            404,
            "Servable not found for request: Specific(doubler, 7)",
        ),
        ("doubler/labels/x:predict", {}, 400, "Unrecognized servable version label: x"),
        ("doubler:predict", {}, 400, "Missing 'inputs' or 'instances' key"),
        (
            "doubler:predict",
            {"signature_name": "s"},
            400,
            'Serving signature name: "s" not found in signature def',
        ),
        ("doubler:Classify", {}, 400, "Malformed request: POST /v1/models/doubler:Classify"),
        ("doubler:classify", {"examples": [{}]}, 400, None),
        ("shapes:predict", {"instances": [[3]]}, 400, None),
        ("shapes:predict", {"instances": [3]}, 400, None),
        ("images:predict", {"instances": ["no image"]}, 400, None),
        ("dense:predict", {"instances": [[1.0, 2.0]]}, 400, None),
    ],
)
def test_rest_refusals(server, path, content, status, message):
    found, answer = rest(server, f"/v1/models/{path}", content)
    assert found == status
    assert answer.keys() == {"error"}
    assert answer["error"] == message or (message is None and answer["error"])


def test_status_metadata_and_listing(server):
    available = {
        "version": "1",
        "state": "AVAILABLE",
        "status": {"error_code": "OK", "error_message": ""},
    }
    for path in ("images", "images/versions/1", "images/labels/whatever"):
        assert rest(server, f"/v1/models/{path}") == (200, {"model_version_status": [available]})
    assert rest(server, "/v1/models/nope") == (
        404,
        {"error": "Could not find any versions of model nope"},
    )
    assert rest(server, "/v1/models/images/versions/9") == (
        404,
        {"error": "Could not find version 9 of model images"},
    )
    status, metadata = rest(server, "/v1/models/images/metadata")
    assert status == 200
    assert metadata["model_spec"] == {"name": "images", "signature_name": "", "version": "1"}
    signature = metadata["metadata"]["signature_def"]["signature_def"]["serving_default"]
    assert signature["method_name"] == "tensorflow/serving/predict"
    assert signature["defaults"] == {}
    assert signature["inputs"]["image_bytes"]["dtype"] == "DT_STRING"
    assert signature["inputs"]["image_bytes"]["tensor_shape"] == {
        "dim": [{"size": "-1", "name": ""}],
        "unknown_rank": False,
    }
    _, listing = rest(server, "/v1/models")
    images = {**available, "labels": ["cat", "dog"], "independent_rows": []}
    assert {"name": "images", "versions": [images]} in listing["models"]


def test_health_and_unknown_paths(server):
    def get(path):
        with urllib.request.urlopen(server.rest_url + path, timeout=10) as response:
            return response.status, response.read()

    assert get("/livez") == get("/readyz") == (200, b"ok")
    assert get("/")[0] == 200
    with pytest.raises(urllib.error.HTTPError) as caught:
        get("/nowhere")
    with caught.value as error:
        assert (error.code, error.headers["content-type"]) == (404, "text/html")


# gRPC


def test_predict_over_grpc(stubs):
    response = stubs[0].Predict(predict_request("doubler", x=np.ones((2, 2), np.float32)))
    assert response.model_spec.name == "doubler"
    assert response.model_spec.version.value == 1
    assert response.model_spec.signature_name == "serving_default"
    assert list(response.outputs["doubled"].float_val) == [2.0] * 4
    assert list(response.outputs["text"].string_val) == [b"1.000000"] * 2
    assert not response.outputs["doubled"].tensor_content
    request = predict_request("doubler", x=np.ones((2, 2), np.float32))
    request.output_filter.append("text")
    assert list(stubs[0].Predict(request).outputs) == ["text"]


def test_messages_may_be_large(stubs):
    x = np.ones((1_000_000, 2), np.float32)
    request = predict_request("doubler", x=x)
    request.output_filter.append("doubled")
    assert request.ByteSize() > 4 * 2**20
    assert len(stubs[0].Predict(request).outputs["doubled"].float_val) == x.size


def _without_spec(request):
    request.ClearField("model_spec")


def _without_name(request):
    request.model_spec.name = ""


def _another_version(request):
    request.model_spec.version.value = 7


def _a_label(request):
    request.model_spec.version_label = "new"


def _a_signature(request):
    request.model_spec.signature_name = "s"


def _no_input(request):
    request.ClearField("inputs")


def _a_torn_tensor(request):
    request.inputs["x"].tensor_content = b"abc"


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        (_without_spec, "INVALID_ARGUMENT", "Missing ModelSpec"),
        (_without_name, "INVALID_ARGUMENT", "ModelSpec has no name specified."),
        (_another_version, "NOT_FOUND", "Servable not found for request: Specific(doubler, 7)"),
        (_a_label, "INVALID_ARGUMENT", "Unrecognized servable version label: new"),
        (_a_signature, "FAILED_PRECONDITION", 'Serving signature key "s" not found.'),
        (
            _no_input,
            "INVALID_ARGUMENT",
            (
                "input size does not match signature: 0!=1 len({}) != len({x}). Sent extra: {}. "
                "Missing but required: {x}."
            ),
        ),
        (_a_torn_tensor, "INVALID_ARGUMENT", "tensor parsing error: x"),
    ],
)
def test_grpc_refusals(stubs, change, code, message):
    request = predict_request("doubler", x=np.ones((2, 2), np.float32))
    change(request)
    with pytest.raises(grpc.RpcError) as caught:
        stubs[0].Predict(request)
    assert (caught.value.code().name, caught.value.details()) == (code, message)


def test_model_metadata_and_status_over_grpc(stubs):
    from tensorflow_serving.apis import get_model_metadata_pb2, get_model_status_pb2

    request = get_model_metadata_pb2.GetModelMetadataRequest()
    request.model_spec.name = "table"
    with pytest.raises(grpc.RpcError, match="must specify at least one metadata_field"):
        stubs[0].GetModelMetadata(request)
    request.metadata_field.append("signature_def")
    response = stubs[0].GetModelMetadata(request)
    signatures = get_model_metadata_pb2.SignatureDefMap()
    assert response.metadata["signature_def"].Unpack(signatures)
    assert set(signatures.signature_def["serving_default"].inputs) == {"age", "name", "seats"}
    request.metadata_field.append("graph")
    with pytest.raises(grpc.RpcError, match="Metadata field graph is not supported"):
        stubs[0].GetModelMetadata(request)

    status = get_model_status_pb2.GetModelStatusRequest()
    status.model_spec.name = "table"
    answer = json_format.MessageToDict(stubs[1].GetModelStatus(status))
    assert answer["model_version_status"][0]["state"] == "AVAILABLE"
    status.model_spec.version.value = 5
    with pytest.raises(grpc.RpcError, match="Could not find version 5 of model table"):
        stubs[1].GetModelStatus(status)
    with pytest.raises(grpc.RpcError, match="Missing ModelSpec"):
        stubs[1].GetModelStatus(get_model_status_pb2.GetModelStatusRequest())


def test_grpc_health_and_what_is_no_classifier(stubs):
    from grpc_health.v1 import health_pb2, health_pb2_grpc
    from tensorflow_serving.apis import classification_pb2

    health = health_pb2_grpc.HealthStub(stubs[2])
    for name in ("", "ModelService", "PredictionService"):
        answer = health.Check(health_pb2.HealthCheckRequest(service=name))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    request = classification_pb2.ClassificationRequest()
    request.model_spec.name = "doubler"
    request.input.example_list.examples.add()
    with pytest.raises(grpc.RpcError, match="No classification inputs found in SignatureDef"):
        stubs[0].Classify(request)


# Hot swap


def test_no_request_fails_through_swaps_and_roll_backs(server, stubs, exports, place):
    base = place.models / "versioned"
    stop = threading.Event()
    seen: dict[str, set[float]] = {"rest": set(), "grpc": set()}

    def ask_rest():
        count = 0
        connection = http.client.HTTPConnection(server.rest_url.removeprefix("http://"))
        while not stop.is_set():
            connection.request("POST", "/v1/models/versioned:predict", b'{"instances":[10]}')
            response = connection.getresponse()
            body = response.read()
            assert response.status == 200, body
            seen["rest"].add(json.loads(body)["predictions"][0] / 10)
            count += 1
        connection.close()
        return count

    def ask_grpc():
        count = 0
        request = predict_request("versioned", x=np.array([10], np.float32))
        while not stop.is_set():
            seen["grpc"].add(stubs[0].Predict(request).outputs["y"].float_val[0] / 10)
            count += 1
        return count

    def wait_for(number):
        deadline = time.monotonic() + 60
        while (
            rest(server, f"/v1/models/versioned/versions/{number}:predict", {"inputs": [1]})[0]
            != 200
        ):
            assert time.monotonic() < deadline, server.logs()
            time.sleep(0.02)
        while len(available(server)) > 1:
            assert time.monotonic() < deadline, server.logs()
            time.sleep(0.02)

    with ThreadPoolExecutor(4) as pool:
        clients = [pool.submit(ask) for ask in (ask_rest, ask_rest, ask_grpc, ask_grpc)]
        try:
            top = 1
            for step in range(SWAPS):
                if step % 3 == 2:
                    shutil.rmtree(base / str(top))
                    top -= 1
                else:
                    top += 1
                    publish(exports / f"versioned-{1 + top % 3}", base, top)
                wait_for(top)
        finally:
            stop.set()
        counts = [client.result(timeout=60) for client in clients]
    assert min(counts) > SWAPS
    assert seen["rest"] == seen["grpc"] == {1.0, 2.0, 3.0}


def test_a_server_of_an_alias_changes_only_when_it_moves(workspace, exports):
    from tensorflow_serving.apis import prediction_service_pb2_grpc

    base = workspace.models / "versioned"
    base.mkdir()
    for number in (1, 2):
        publish(exports / f"versioned-{number}", base, number)
    repository = workspace_models(workspace)
    repository.alias("versioned", "champion", 1)
    stop = threading.Event()

    def ask_rest(path):
        answers = []
        connection = http.client.HTTPConnection(server.rest_url.removeprefix("http://"))
        while not stop.is_set():
            connection.request("POST", f"/v1/models/versioned{path}:predict", b'{"instances":[1]}')
            response = connection.getresponse()
            body = response.read()
            assert response.status == 200, body
            answers.append(json.loads(body)["predictions"][0])
        connection.close()
        return answers

    def ask_grpc(stub):
        request = predict_request("versioned", x=np.array([1], np.float32))
        request.model_spec.version_label = "champion"
        answers = []
        while not stop.is_set():
            answers.append(stub.Predict(request).outputs["y"].float_val[0])
        return answers

    def serves(number):
        until(lambda: predict("versioned", [1.0], workspace=workspace)[0].version == number)
        until(lambda: [int(each["version"]) for each in available(server)] == [number])

    options = {"rest_port": 0, "grpc_port": 0, "block": False, "poll_s": 0.1}
    with (
        serve("versioned@champion", workspace=workspace, **options) as server,
        grpc.insecure_channel(server.grpc_address) as channel,
        ThreadPoolExecutor(3) as pool,
    ):
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        clients = [
            pool.submit(ask_rest, ""),
            pool.submit(ask_rest, "/labels/champion"),
            pool.submit(ask_grpc, stub),
        ]
        try:
            publish(exports / "versioned-3", base, 3)
            time.sleep(1)
            serves(1)
            for number in (3, 2, 1):
                repository.alias("versioned", "champion", number)
                serves(number)
                url = f"{server.rest_url}/v1/models/versioned/labels/champion"
                assert predict(url, [1.0])[0].version == number
            assert predict("versioned@champion", [1.0], workspace=workspace)[0].version == 1
        finally:
            stop.set()
        for client in clients:
            assert set(client.result(timeout=60)) == {1.0, 2.0, 3.0}


def available(server):
    _, answer = rest(server, "/v1/models/versioned")
    return [s for s in answer["model_version_status"] if s["state"] != "END"]


def test_a_broken_version_changes_nothing_for_clients(server, place):
    folder = place.models / "table" / "2"
    (folder / "variables").mkdir(parents=True)
    (folder / "saved_model.pb").write_bytes(b"nonsense")
    deadline = time.monotonic() + 60
    while True:
        _, answer = rest(server, "/v1/models/table")
        ended = [s for s in answer["model_version_status"] if s["state"] == "END"]
        if ended:
            break
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert ended[0]["version"] == "2"
    assert ended[0]["status"]["error_message"]
    row = {"age": 1, "name": "", "seats": [0]}
    assert rest(server, "/v1/models/table:predict", {"instances": [row]})[0] == 200
    assert server.logs().count("Cannot load version 2") == 1
    shutil.rmtree(folder)


# The client


def test_predict_finds_the_server_and_what_the_model_takes(server, place, png, tmp_path):
    white, black = tmp_path / "white.png", tmp_path / "black.png"
    white.write_bytes(png())
    black.write_bytes(png(white=False))
    told: list[str] = []
    first, second = predict("images", [white, str(black)], workspace=place, notify=told.append)
    assert told == []
    assert (first.label, first.version, first.source) == ("dog", 1, str(white))
    assert first.scores == {"dog": 1.0, "cat": 0.0}
    assert list(second.scores) == ["cat", "dog"]
    assert predict("images", png(), workspace=place)[0].label == "dog"

    table = tmp_path / "rows.csv"
    table.write_text("name,age,seats,survived\nAda,20,2.5,yes\nBo,1,0,no\n")
    assert [p.value for p in predict("table/1", table, workspace=place)] == [45.5, 4.0]
    row = {"age": 20.0, "name": "Ada", "seats": 2.5}
    assert predict("table", row, workspace=place)[0].value == 45.5
    many = predict("table", [row] * 100, workspace=place)
    assert {p.value for p in many} == {45.5}
    assert len(many) == 100

    batch = np.ones((3, 8, 8, 2), np.float32)
    predictions = predict("dense", batch, workspace=place)
    assert len(predictions) == 3
    assert sum(predictions[0].scores.values()) == pytest.approx(1, abs=1e-5)
    assert predictions[0].label in {"0", "1", "2", "3"}
    assert len(predict("dense", batch[0], workspace=place)) == 1


def test_predict_by_address(server, place, png):
    from timonel.errors import NotFoundError, ServingError

    url = f"{server.rest_url}/v1/models/images"
    assert predict(url, png())[0].label == "dog"
    assert predict(f"{url}/versions/1:predict", png())[0].version == 1
    with pytest.raises(NotFoundError, match="names no model") as caught:
        predict(server.rest_url, png())
    assert "it serves doubler, images" in str(caught.value)
    with pytest.raises(NotFoundError, match="does not serve nope"):
        predict(f"{server.rest_url}/v1/models/nope", png())
    with pytest.raises(NotFoundError, match="does not serve version 7 of images"):
        predict(url, png(), version=7)
    with pytest.raises(
        NotFoundError, match="no model 'nope' in this workspace: the models are: dense"
    ):
        predict("nope", png(), workspace=place)
    with pytest.raises(ServingError, match="connection refused"):
        predict("http://127.0.0.1:9/v1/models/images", png())


def test_predict_without_a_server_loads_the_model_for_the_call(workspace, exports, png):
    base = workspace.models / "images"
    base.mkdir()
    for number in (1, 2):
        publish(exports / "images", base, number)
    told = []
    (prediction,) = predict("images/1", png(), workspace=workspace, notify=told.append)
    assert (prediction.label, prediction.version) == ("dog", 1)
    assert told == [
        "no server of this workspace serves version 1 of images: loading it for this call"
    ]
    assert not running_servers(workspace.servers)


@pytest.mark.skipif(shutil.which("curl") is None, reason="a bare machine has no curl")
@pytest.mark.parametrize("model", ["images", "table", "doubler", "dense"])
def test_the_curl_line_works_as_it_is(server, model, png, tmp_path):
    image = tmp_path / "an image's name.png"
    image.write_bytes(png())
    line = curl_example(server, model, image=str(image))
    done = subprocess.run(["sh", "-c", line], capture_output=True, timeout=60, check=True)
    assert len(json.loads(done.stdout)["predictions"]) == 1

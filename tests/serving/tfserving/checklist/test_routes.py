"""What URLs mean, and what HTTP answers besides (2.1, 2.2, 2.6)."""

from __future__ import annotations

import gzip
import json

import pytest

from tests.serving.tfserving.checklist.harness import (
    HALF,
    KERAS,
    post,
)

pytestmark = pytest.mark.soak


@pytest.mark.parametrize("path", ["/", "/healthz", "/v1", "/livez2"])
def test_other_paths_are_a_small_page(server, path):
    status, headers, body = server.ask("GET", path)
    assert (status, headers["content-type"]) == (404, "text/html")
    assert b"<H1>Not Found</H1>" in body


@pytest.mark.parametrize(
    ("method", "path", "status", "message"),
    [
        ("GET", "/v1/models", 400, "Missing model name in request."),
        ("GET", "/v1/models/m?x=1", 404, "Could not find any versions of model m?x=1"),
        (
            "POST",
            f"/v1/models/{HALF}:predict?x=1",
            400,
            f"Malformed request: POST /v1/models/{HALF}:predict?x=1",
        ),
        (
            "POST",
            f"/v1/models/{HALF}:Predict",
            400,
            f"Malformed request: POST /v1/models/{HALF}:Predict",
        ),
        ("PUT", f"/v1/models/{HALF}", 400, f"Malformed request: PUT /v1/models/{HALF}"),
        ("DELETE", f"/v1/models/{HALF}", 400, f"Malformed request: DELETE /v1/models/{HALF}"),
        ("PATCH", f"/v1/models/{HALF}", 400, f"Malformed request: PATCH /v1/models/{HALF}"),
        (
            "GET",
            f"/v1/models/{HALF}/version/1",
            400,
            f"Malformed request: GET /v1/models/{HALF}/version/1",
        ),
        (
            "POST",
            f"/v1/models/{HALF}/versions/123/labels/stable:predict",
            400,
            f"Malformed request: POST /v1/models/{HALF}/versions/123/labels/stable:predict",
        ),
        ("GET", f"/v1/models/{HALF}:predict", 400, None),
        ("GET", "/v1/models/nope/metadata", 404, "Servable not found for request: Latest(nope)"),
        (
            "GET",
            f"/v1/models/{HALF}/versions/5/metadata",
            404,
            f"Servable not found for request: Specific({HALF}, 5)",
        ),
        (
            "GET",
            f"/v1/models/{HALF}/versions/5",
            404,
            f"Could not find version 5 of model {HALF}",
        ),
    ],
)
def test_refused_routes(server, method, path, status, message):
    found, headers, body = server.ask(method, path)
    message = message or f"Malformed request: {method} {path}"
    assert (found, headers["content-type"]) == (status, "application/json")
    assert json.loads(body) == {"error": message}
    assert not {"server", "date", "etag", "cache-control"} & headers.keys()


def test_names_are_decoded_and_words_have_any_case(server):
    want = (200, {"predictions": [2.5, 3.0]})
    body = {"instances": [1.0, 2.0]}
    for path in (f"/v1/models/{HALF}:predict", "/V1/MoDels/half%5Fplus_two:predict"):
        status, _, answer = server.ask("POST", path, json.dumps(body))
        assert (status, json.loads(answer)) == want
    for path in (f"{HALF}/versions/123:predict", f"{HALF}/versions/00123:predict"):
        assert post(server, path, body) == want
    assert post(server, f"{HALF}/labels/stable:predict", body) == want


def test_no_version_beyond_64_bits_is_found(server):
    """TensorFlow Serving's answer is an empty 400."""
    message = f"Servable not found for request: Specific({HALF}, 9223372036854775808)"
    for method in ("GET", "POST"):
        path = f"/v1/models/{HALF}/versions/9223372036854775808"
        status, _, body = server.ask(method, path + (":predict" if method == "POST" else ""), b"{}")
        assert (status, json.loads(body)) == (404, {"error": message})


def test_options(server):
    for origin, status in (("https://a.example", 200), ("null", 400), (None, 400)):
        headers = {"Origin": origin} if origin else {}
        found, sent, body = server.ask("OPTIONS", f"/v1/models/{HALF}:predict", None, headers)
        assert (found, body, "content-type" in sent) == (status, b"", False)


def test_packed_bodies(server):
    packed = gzip.compress(b'{"instances": [1]}')
    gzipped = {"Content-Encoding": "gzip"}
    assert post(server, f"{HALF}:predict", packed, **gzipped)[0] == 200
    for damaged in (packed[:-4], b'{"instances": [1]}'):
        assert post(server, f"{HALF}:predict", damaged, **gzipped) == (
            400,
            {"error": "JSON Parse error: The document is empty"},
        )


def test_status_and_metadata(server):
    available = {
        "version": "123",
        "state": "AVAILABLE",
        "status": {"error_code": "OK", "error_message": ""},
    }
    for path in (HALF, f"{HALF}/versions/123", f"{HALF}/labels/anything"):
        status, _, body = server.ask("GET", f"/v1/models/{path}")
        assert (status, json.loads(body)) == (200, {"model_version_status": [available]})
    status, _, body = server.ask("GET", f"/v1/models/{HALF}/metadata")
    content = json.loads(body)
    assert status == 200
    assert content["model_spec"] == {"name": HALF, "signature_name": "", "version": "123"}
    signatures = content["metadata"]["signature_def"]["signature_def"]
    assert signatures["serving_default"] == {
        "inputs": {
            "x": {
                "dtype": "DT_FLOAT",
                "tensor_shape": {"dim": [{"size": "-1", "name": ""}, {"size": "1", "name": ""}],
                                 "unknown_rank": False},
                "name": "x:0",
            }
        },
        "outputs": {
            "y": {
                "dtype": "DT_FLOAT",
                "tensor_shape": {"dim": [{"size": "-1", "name": ""}, {"size": "1", "name": ""}],
                                 "unknown_rank": False},
                "name": "y:0",
            }
        },
        "method_name": "tensorflow/serving/predict",
        "defaults": {},
    }  # fmt: skip
    _, _, body = server.ask("GET", f"/v1/models/{KERAS}/metadata")
    keras = json.loads(body)["metadata"]["signature_def"]["signature_def"]
    assert {"serving_default", "__saved_model_init_op"} <= keras.keys()

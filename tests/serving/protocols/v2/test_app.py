from __future__ import annotations

import asyncio
import gzip
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.serving.protocols.tfs_rest.options import inference_router
from tests.serving.protocols.v2.arrays import arrays, same
from tests.serving.protocols.v2.models import Echo, catalogue_of
from timonel._version import __version__
from timonel.serving.protocols.v2.rest_codec import decode
from timonel.serving.protocols.v2.tensors import datatype_of, to_raw
from timonel.serving.status import Code
from timonel.serving.telemetry.monitor import Monitor

ROW = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}


class Client:
    def __init__(self, **kwargs):
        self.draining = False
        self.monitor = Monitor()
        self.pool = ThreadPoolExecutor(1)
        self.model = Echo()
        self.catalogue = catalogue_of(self.model)
        self.app = inference_router(
            self.catalogue, self.pool, self.monitor, lambda: self.draining, **kwargs
        )

    def ask(self, method, path, content=b"", **headers):
        """Return the status, the headers and the body."""
        return asyncio.run(self.asked(method, path, content, **headers))

    async def asked(self, method, path, content=b"", **headers):
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [
                (name.replace("_", "-").encode(), str(value).encode())
                for name, value in headers.items()
            ],
        }
        sent = []
        waiting = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive():
            if waiting:
                return waiting.pop()
            return await asyncio.Future()

        async def send(message):
            sent.append(message)

        await self.app(scope, receive, send)
        answered = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return sent[0]["status"], answered, sent[1]["body"]

    def json(self, method, path, content=b"", **headers):
        status, answered, body = self.ask(method, path, content, **headers)
        assert answered["content-type"] == "application/json"
        assert int(answered["content-length"]) == len(body)
        return status, json.loads(body)

    def close(self):
        self.pool.shutdown()


@pytest.fixture(scope="module")
def client():
    client = Client()
    yield client
    client.close()


def test_what_is_not_of_the_protocol_is_answered_elsewhere(client):
    for path in ("/v1/models/m", "/v2x"):
        assert b"<H1>Not Found</H1>" in client.ask("GET", path)[2]


def test_the_server_and_its_models_are_described(client):
    assert client.json("GET", "/v2") == (
        200,
        {"name": "timonel", "version": __version__, "extensions": ["binary_tensor_data"]},
    )
    expected = {
        "name": "m",
        "versions": ["3", "4"],
        "platform": "echo_all",
        "inputs": [
            {"name": "x", "datatype": "FP32", "shape": [-1, 2]},
            {"name": "k", "datatype": "FP32", "shape": []},
        ],
        "outputs": [
            {"name": "y", "datatype": "FP32", "shape": [-1, 2]},
            {"name": "text", "datatype": "BYTES", "shape": [-1]},
        ],
    }
    for version in ("", "/versions/3", "/versions/stable"):
        assert client.json("GET", f"/v2/models/m{version}") == (200, expected)


def test_readiness_is_honest():
    client = Client()
    assert client.json("GET", "/v2/health/live") == (200, {"live": True})
    assert client.json("GET", "/v2/health/ready") == (503, {"ready": False})
    client.catalogue.configure({"m": {}})
    assert client.json("GET", "/v2/health/ready") == (200, {"ready": True})
    assert client.ask("HEAD", "/v2/health/ready")[2] == b""
    client.draining = True
    assert client.json("GET", "/v2/health/ready") == (503, {"ready": False})
    assert client.json("GET", "/v2/health/live") == (200, {"live": True})
    client.close()


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("m", 200),
        ("m/versions/3", 200),
        ("m/versions/stable", 200),
        ("m/versions/5", 503),
        ("m/versions/7", 404),
        ("m/versions/nosuch", 400),
        ("n", 503),
        ("nosuch", 404),
    ],
)
def test_whether_a_version_can_answer(client, path, status):
    assert client.json("GET", f"/v2/models/{path}/ready")[0] == status


def test_an_inference_in_json(client):
    asked = {"id": "7", "inputs": [ROW], "outputs": [{"name": "y"}]}
    assert client.json("POST", "/v2/models/m/infer", asked) == (
        200,
        {
            "model_name": "m",
            "model_version": "4",
            "id": "7",
            "outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 2], "data": [3, 5]}],
        },
    )
    status, answer = client.json("POST", "/v2/models/m/versions/3/infer", {"inputs": [ROW]})
    assert (status, answer["model_version"]) == (200, "3")
    assert [output["name"] for output in answer["outputs"]] == ["y", "text"]
    assert answer["outputs"][1]["parameters"] == {"content_type": "base64"}


def test_an_inference_in_binary(client):
    array = np.array([[1, 2], [3, 4]], np.float32)
    head = json.dumps(
        {
            "inputs": [
                {
                    "name": "x",
                    "datatype": "FP32",
                    "shape": [2, 2],
                    "parameters": {"binary_data_size": array.nbytes},
                }
            ],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    for size in (0, 2**17):  # the larger one goes through the pool
        padded = head + b" " * size
        for packed in (False, True):
            body, headers = padded + array.tobytes(), {}
            if packed:
                body, headers = gzip.compress(body), {"content_encoding": "gzip"}
            headers["inference_header_content_length"] = len(padded)
            status, answered, body = client.ask("POST", "/v2/models/m/infer", body, **headers)
            assert status == 200
            assert answered["content-type"] == "application/octet-stream"
            length = int(answered["inference-header-content-length"])
            described = json.loads(body[:length])["outputs"]
            assert [each["parameters"]["binary_data_size"] for each in described] == [16, 10]
            assert body[length : length + 16] == (array * 2 + 1).tobytes()


@settings(max_examples=40)
@given(arrays(), st.booleans(), st.booleans())
def test_every_type_comes_back_as_it_was_sent(client, array, raw, binary):
    datatype = datatype_of("x", array)
    described = {"name": "x", "datatype": datatype, "shape": list(array.shape)}
    content = b""
    if raw or datatype == "BYTES":
        content = to_raw(array)
        described["parameters"] = {"binary_data_size": len(content)}
    else:
        plain = array.astype(np.float64) if datatype == "BF16" else array
        described["data"] = plain.tolist() if array.ndim else [plain.item()]
    asked = {
        "inputs": [described],
        "outputs": [{"name": "y", "parameters": {"binary_data": binary}}],
        "parameters": {"signature_name": datatype},
    }
    head = json.dumps(asked).encode()
    status, answered, body = client.ask(
        "POST", "/v2/models/m/infer", head + content, inference_header_content_length=len(head)
    )
    assert status == 200, body
    length = answered.get("inference-header-content-length")
    assert (length is not None) == binary
    size = len(body) if length is None else int(length)
    again = json.dumps({"inputs": json.loads(body[:size])["outputs"]}).encode()
    assert same(decode(again + body[size:], len(again)).inputs["y"], array)


@pytest.mark.parametrize(
    ("path", "asked", "status", "told"),
    [
        ("nosuch/infer", {"inputs": [ROW]}, 404, "Servable not found for request: Latest(nosuch)"),
        ("m/versions/5/infer", {"inputs": [ROW]}, 404, "Specific(m, 5)"),
        ("m/versions/nosuch/infer", {"inputs": [ROW]}, 400, "version label: nosuch"),
        ("m/explain", {}, 404, "Not a URL of the Open Inference Protocol"),
        ("m/infer", b"", 400, "JSON Parse error: The document is empty"),
        ("m/infer", {"inputs": []}, 400, "Signature input alias: x"),
        ("m/infer", {"inputs": [{**ROW, "name": "z"}]}, 400, "x"),
        ("m/infer", {"inputs": [{**ROW, "datatype": "FP64"}]}, 400, "to be FP32, got FP64"),
        ("m/infer", {"inputs": [{**ROW, "shape": [2]}]}, 400, "shape [-1, 2], got [2]"),
        (
            "m/infer",
            {"inputs": [ROW], "outputs": [{"name": "z"}]},
            400,
            "not found in signature: z",
        ),
        (
            "m/infer",
            {"inputs": [ROW], "parameters": {"signature_name": "no"}},
            400,
            'Serving signature key "no" not found.',
        ),
        ("m/infer", {"inputs": [{**ROW, "data": [-1, 0]}]}, 400, "expected no negative numbers"),
        (
            "m/infer",
            {"parameters": {"signature_name": "complex"}},
            400,
            "no data type for output y, which is COMPLEX64",
        ),
    ],
)
def test_what_cannot_be_answered_has_one_clear_error(client, path, asked, status, told):
    found, answer = client.json("POST", f"/v2/models/{path}", asked)
    assert found == status
    assert answer.keys() == {"error"}
    assert told in answer["error"]


@pytest.mark.parametrize(
    ("headers", "told"),
    [
        ({"inference_header_content_length": "x"}, "must be a number of bytes, got x"),
        ({"inference_header_content_length": "-1"}, "must be a number of bytes, got -1"),
        ({"inference_header_content_length": "9" * 5000}, "must be a number of bytes, got 999"),
        ({"inference_header_content_length": "999999"}, "its header declares 999999 of JSON"),
        ({"inference_header_content_length": "0"}, "The document is empty"),
        ({"content_encoding": "deflate"}, "Unsupported Content-Encoding deflate"),
        ({"content_encoding": "gzip"}, "The gzip body is damaged"),
    ],
)
def test_headers_that_are_wrong_are_told(client, headers, told):
    status, answer = client.json("POST", "/v2/models/m/infer", {"inputs": [ROW]}, **headers)
    assert status == 400
    assert told in answer["error"]


def test_another_method_is_told_which_there_are(client):
    status, headers, body = client.ask("GET", "/v2/models/m/infer")
    assert (status, headers["allow"]) == (405, "POST")
    assert json.loads(body) == {"error": "Method not allowed. Use POST."}


def test_a_deadline_of_the_request_or_of_the_server_holds():
    class Slow(Echo):
        def run(self, signature, inputs, outputs=None):
            release.wait(20)
            return super().run(signature, inputs, outputs)

    release = threading.Event()
    for options, parameters in (({}, {"timeout": 50_000}), ({"timeout_s": 0.05}, {})):
        client = Client(**options)
        client.catalogue.publish("m", catalogue_of(Slow()).loaded("m"), ())
        asked = {"inputs": [ROW], "parameters": parameters}
        status, answer = client.json("POST", "/v2/models/m/infer", asked)
        release.set()
        assert status == 504
        assert answer.keys() == {"error"}
        client.close()
        release.clear()


def test_inferences_are_counted_as_such():
    client = Client()
    client.json("POST", "/v2/models/m/infer", {"inputs": [ROW]})
    client.json("POST", "/v2/models/m/infer", {})
    client.json("GET", "/v2/models/m")
    client.json("GET", "/v2/health/live")
    counted = {
        (key.api, key.model, key.version, key.code): sum(value.whole.counts)
        for key, value in client.monitor.counts().requests.items()
    }
    assert counted == {
        ("infer", "m", 4, Code.OK): 1,
        ("infer", "m", 4, Code.INVALID_ARGUMENT): 1,
        ("", "m", None, Code.OK): 1,
    }
    client.close()


def test_pages_of_other_origins_may_ask_if_they_shall():
    client = Client(cors=True)
    status, headers, _ = client.ask("OPTIONS", "/v2/models/m/infer", origin="http://a")
    assert (status, headers["access-control-allow-origin"]) == (200, "*")
    _, headers, _ = client.ask("GET", "/v2")
    assert headers["access-control-expose-headers"] == "Inference-Header-Content-Length"
    client.close()
    client = Client()
    assert client.ask("OPTIONS", "/v2", origin="http://a")[0] == 405
    client.close()


def test_a_defect_costs_one_request(caplog):
    client = Client()
    client.catalogue.acquire = None
    status, answer = client.json("POST", "/v2/models/m/infer", {"inputs": [ROW]})
    assert status == 500
    assert answer["error"].startswith("TypeError")
    assert "failed" in caplog.text
    client.close()

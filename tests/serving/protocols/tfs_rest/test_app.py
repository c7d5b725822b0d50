from __future__ import annotations

import asyncio
import gzip
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.serving.protocols.tfs_rest.options import rest_options, rest_router
from timonel.serving.batching.scheduling import scheduled
from timonel.serving.manager.catalogue import Catalogue, Servable
from timonel.serving.manager.plan import VersionState, VersionStatus
from timonel.serving.protocols import http
from timonel.serving.protocols.tfs_rest import predict
from timonel.serving.runtimes.base import LoadedModel
from timonel.serving.signature import Signature, TensorSpec
from timonel.serving.status import HTTP_STATUS, Code, StatusError
from timonel.serving.telemetry.monitor import Monitor

STRICT = rest_options(extensions=False)


class Model(LoadedModel):
    """Doubles numbers, and counts the bytes of examples."""

    def __init__(self):
        x = TensorSpec("x:0", "DT_FLOAT", (-1,))
        examples = TensorSpec("examples:0", "DT_STRING", (-1,))
        scores = TensorSpec("scores:0", "DT_FLOAT", (-1, 1))
        self.signatures = {
            "serving_default": Signature("serving_default", {"x": x}, {"y": x}),
            "classes": Signature(
                "classes", {"inputs": examples}, {"scores": scores}, "tensorflow/serving/classify"
            ),
            "value": Signature(
                "value", {"inputs": examples}, {"outputs": x}, "tensorflow/serving/regress"
            ),
        }
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.why = None

    @property
    def outage(self):
        return self.why

    def run(self, signature, inputs, outputs=None):
        self.may_go_on.wait(60)
        if signature == "serving_default":
            return {"y": inputs["x"] * 2}
        sizes = np.array([len(example) for example in inputs["inputs"]], np.float32)
        return {"scores": sizes[:, None]} if signature == "classes" else {"outputs": sizes}

    def close(self):
        pass


class Client:
    def __init__(self, options=None, monitor=None):
        self.model = Model()
        catalogue = Catalogue({"m": {}})
        catalogue.publish(
            "m",
            {3: Servable("m", 3, scheduled(self.model))},
            (VersionStatus(3, VersionState.AVAILABLE),),
        )
        self.pool = ThreadPoolExecutor(1)
        self.app = rest_router(catalogue, self.pool, monitor, **(options or {}))

    def ask(self, method, target, content=b"", headers=()):
        """Return the status, the headers and the body."""
        return asyncio.run(self.asked(method, target, content, headers))

    async def asked(self, method, target, content=b"", headers=()):
        path, _, query = target.partition("?")
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": list(headers),
        }
        messages = []

        async def receive():
            return {"type": "http.request", "body": body}

        async def send(message):
            messages.append(message)

        await self.app(scope, receive, send)
        start, end = messages
        return start["status"], dict(start["headers"]), end["body"]


@pytest.fixture
def client():
    made = []

    def make(options=None, monitor=None):
        made.append(Client(options, monitor))
        return made[-1]

    yield make
    for each in made:
        each.model.may_go_on.set()
        each.pool.shutdown()


def error(answer):
    return answer[0], json.loads(answer[2])["error"]


def test_a_prediction_is_compact_json_with_and_without_extensions(client):
    path, content = "/v1/models/m:predict", {"instances": [1, 2.5]}
    for options in (None, STRICT):
        status, headers, body = client(options).ask("POST", path, content)
        assert (status, body) == (200, b'{"predictions":[2.0,5.0]}')
        assert headers == {b"content-type": b"application/json", b"content-length": b"25"}


def test_classify_and_regress(client):
    examples = {"examples": [{}, {"a": 1.0}], "context": {"b": ["c"]}}
    asked = client().ask("POST", "/v1/models/m:classify", examples | {"signature_name": "classes"})
    ((_, one),), ((_, two),) = json.loads(asked[2])["results"]
    assert 0 < one < two
    asked = client().ask("POST", "/v1/models/m:regress", examples | {"signature_name": "value"})
    assert json.loads(asked[2]) == {"results": [one, two]}


@pytest.mark.parametrize(
    ("method", "target", "content", "status", "message"),
    [
        ("POST", "/v1/models/m:Predict", b"", 400, "Malformed request: POST /v1/models/m:Predict"),
        ("GET", "/v1/models/m/é", b"", 400, "Malformed request: GET /v1/models/m/é"),
        ("HEAD", "/v1/models/m", b"", 400, None),
        ("GET", "/v1/models/m?x=1", b"", 404, "Could not find any versions of model m?x=1"),
        ("GET", "/v1/models/m/versions/4", b"", 404, "Could not find version 4 of model m"),
        (
            "POST",
            "/v1/models/m/labels/new:predict",
            {"inputs": 1},
            400,
            "Unrecognized servable version label: new",
        ),
        # What is no JSON is told before what is not there.
        ("POST", "/v1/models/n:predict", b"{", 400, None),
        ("POST", "/v1/models/n:classify", b"{", 400, None),
        ("POST", "/v1/models/n:predict", {}, 404, "Servable not found for request: Latest(n)"),
        (
            "POST",
            "/v1/models/m:predict",
            {"signature_name": "s"},
            400,
            'Serving signature name: "s" not found in signature def',
        ),
        (
            "POST",
            "/v1/models/m:regress",
            {"examples": [{}], "signature_name": "s"},
            400,
            "No signature was found with the name: s",
        ),
        (
            "POST",
            "/v1/models/m:regress",
            {},
            400,
            "JSON Value: {} When method is classify, key 'examples' is expected and was not found",
        ),
    ],
)
def test_errors(client, method, target, content, status, message):
    answer = client(STRICT).ask(method, target, content)
    assert answer[0] == status
    assert answer[1][b"content-type"] == b"application/json"
    if message is not None:
        assert error(answer) == (status, message)


def test_status_ignores_labels_and_models_are_listed_by_ours_only(client):
    strict = client(STRICT)
    assert strict.ask("GET", "/v1/models/m/labels/any") == strict.ask("GET", "/v1/models/m")
    assert error(strict.ask("GET", "/v1/models")) == (400, "Missing model name in request.")
    assert json.loads(client().ask("GET", "/v1/models")[2])["models"][0]["name"] == "m"
    metadata = json.loads(strict.ask("GET", "/v1/models/m/metadata")[2])
    assert metadata["model_spec"] == {"name": "m", "signature_name": "", "version": "3"}


def test_a_server_is_not_ready_while_a_process_is_away(client):
    asked = client()
    assert asked.ask("GET", "/readyz")[0] == 200
    asked.model.why = StatusError(Code.UNAVAILABLE, "The process of this model was killed.")
    assert asked.ask("GET", "/readyz")[::2] == (503, b"not loaded: m")
    (version,) = json.loads(asked.ask("GET", "/v1/models")[2])["models"][0]["versions"]
    assert version["state"] == "AVAILABLE"
    assert version["status"] == {
        "error_code": "UNAVAILABLE",
        "error_message": "The process of this model was killed.",
    }
    assert asked.ask("GET", "/livez")[::2] == (200, b"ok")


def test_a_version_beyond_64_bits(client):
    target = f"/v1/models/m/versions/{2**63}"
    message = f"Servable not found for request: Specific(m, {2**63})"
    assert error(client(STRICT).ask("GET", target)) == (404, message)


@pytest.mark.parametrize("target", ["/", "/v1", "/healthz", "/v2/models/m"])
def test_other_paths_are_no_json(client, target):
    status, headers, body = client(STRICT).ask("GET", target)
    assert (status, headers[b"content-type"]) == (404, b"text/html")
    assert b"<H1>Not Found</H1>" in body


def test_head_has_no_body(client):
    assert client().ask("HEAD", "/livez")[1:] == (
        {b"content-type": b"text/plain", b"content-length": b"2"},
        b"",
    )


@pytest.mark.parametrize(
    ("origin", "status"),
    [([(b"origin", b"https://a.example")], 200), ([(b"origin", b"null")], 400), ([], 400)],
)
def test_preflight(client, origin, status):
    asked = client(STRICT).ask("OPTIONS", "/v1/models/m:predict", headers=origin)
    assert asked == (status, {b"content-length": b"0"}, b"")


def test_other_origins(client):
    options = rest_options(extensions=False, cors=True)
    allowed = {
        b"access-control-allow-origin": b"*",
        b"access-control-allow-methods": b"POST, GET",
        b"access-control-allow-headers": b"Content-Type",
    }
    for method, target in [("GET", "/v1/models/m"), ("GET", "/v1/x"), ("OPTIONS", "/v1/x")]:
        assert client(options).ask(method, target)[1].items() >= allowed.items()
    assert b"access-control-allow-origin" not in client(options).ask("GET", "/")[1]


@pytest.mark.parametrize("name", [b"x-gzip", b"GZip"])
def test_gzip(client, monkeypatch, name):
    packed = gzip.compress(b'{"instances": [1]}')
    encoding = [(b"content-encoding", name)]

    def ask(content):
        options = {**STRICT, "max_body": 2**31}
        return client(options).ask("POST", "/v1/models/m:predict", content, encoding)

    assert json.loads(ask(packed)[2]) == {"predictions": [2.0]}
    empty = (400, "JSON Parse error: The document is empty")
    assert error(ask(packed[:-3])) == empty
    assert error(ask(b"{}")) == empty
    monkeypatch.setattr(http, "_UNZIPPED_LIMIT", 10)
    assert error(ask(packed)) == empty


def test_a_request_that_takes_too_long(client):
    slow = client(rest_options(timeout_s=0.5))
    slow.model.may_go_on.clear()
    asked = slow.ask("POST", "/v1/models/m:predict", {"instances": [1]})
    assert error(asked) == (504, "Timed out waiting for notification")


def test_methods_are_checked_where_asked_for(client):
    checking = client(rest_options(check_method_names=True))
    asked = checking.ask("POST", "/v1/models/m:predict", {"instances": [1]})
    assert error(asked)[0] == 500
    assert "Expected prediction signature method_name" in error(asked)[1]
    content = {"examples": [{}], "signature_name": "value"}
    assert checking.ask("POST", "/v1/models/m:regress", content)[0] == 200
    assert checking.ask("POST", "/v1/models/m:classify", content)[0] == 400


TEXT = [(b"content-type", b"text/plain")]
JPEG = [(b"content-type", b"image/jpeg")]


@pytest.mark.parametrize("headers", [[], [(b"content-encoding", b"gzip")]])
def test_a_body_is_what_its_content_type_says(client, headers):
    asking = client()

    def refusal(content, kind, verb="predict"):
        body = gzip.compress(content) if headers else content
        return error(asking.ask("POST", f"/v1/models/m:{verb}", body, [*kind, *headers]))

    for kind, name in ((JPEG, "image/jpeg"), (TEXT, "text/plain")):
        status, words = refusal(b"\xff\xd8", kind)
        assert status == 400
        assert words.startswith(f"A body of {name} needs a signature")
        assert words.endswith("but this one takes x (float [?]). Send JSON instead.")
    assert refusal(b"1", TEXT, "classify") == (400, "JSON Value: 1 Is not object")
    assert refusal(b"x\n1\n", [(b"content-type", b"text/csv")])[1].startswith("JSON Parse error")


def test_for_tensorflow_serving_every_body_is_json(client):
    asking = client(STRICT)
    status, words = error(asking.ask("POST", "/v1/models/m:predict", b"\xff\xd8", JPEG))
    assert (status, words[:16]) == (400, "JSON Parse error")
    asked = asking.ask("POST", "/v1/models/m:predict", {"instances": [1]}, JPEG)
    assert (asked[0], json.loads(asked[2])) == (200, {"predictions": [2.0]})


def test_a_defect_costs_one_request(client, monkeypatch, caplog):
    def defect(*_, **__):
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(predict, "read_request", defect)
    asked = client().ask("POST", "/v1/models/m:predict", {"instances": [1]})
    assert error(asked) == (500, "ZeroDivisionError: oh")
    assert "failed" in caplog.text


def test_requests_are_counted(client):
    monitor = Monitor()
    asking = client(STRICT, monitor)
    trace = [(b"traceparent", b"00-1-2-01"), (b"tracestate", b"a=b")]
    asking.ask("POST", "/v1/models/m:predict", {"instances": [1, 2]}, trace)
    asking.ask("POST", "/v1/models/n:regress", {"examples": [{}]})
    asking.ask("GET", "/v1/models/m")
    asking.ask("GET", "/v1/x")
    keys = [(each.key.api, each.key.model, each.key.code) for each in monitor.recent()]
    assert keys == [
        ("predict", "m", Code.OK),
        ("regress", "n", Code.NOT_FOUND),
        ("", "m", Code.OK),
        ("", "", Code.INVALID_ARGUMENT),
    ]
    assert monitor.recent()[0].rows == 2


def test_every_code_has_a_status():
    assert HTTP_STATUS.keys() == set(Code)

"""What the URLs of the Open Inference Protocol ask for."""

from __future__ import annotations

import asyncio
import json

import pytest

from timonel.serving.asgi import Router
from timonel.serving.inference.flow import Flow
from timonel.serving.manager.catalogue import Catalogue
from timonel.serving.protocols.v2.api import InferenceApi
from timonel.serving.status import not_found
from timonel.serving.telemetry.monitor import Monitor


class Models(Catalogue):
    asked = None

    def metadata(self, spec):
        self.asked = (spec.name, spec.version, spec.label)
        raise not_found("asked")


def ask(request_line):
    """Return the status, the headers, the error and what the catalogue was asked for."""
    method, path = request_line.split(" ")
    sent, models = [], Models()

    async def send(message):
        sent.append(message)

    async def receive():
        return {"type": "http.request", "body": b'{"inputs": []}'}

    scope = {"type": "http", "method": method, "raw_path": path.encode(), "query_string": b"a=b"}
    app = Router(InferenceApi(Flow(models, None, Monitor())).routes())
    asyncio.run(app({**scope, "headers": []}, receive, send))
    body = sent[1]["body"]
    is_json = (b"content-type", b"application/json") in sent[0]["headers"] and body
    return sent[0]["status"], dict(sent[0]["headers"]), json.loads(body) if is_json else {}, models


@pytest.mark.parametrize(
    ("request_line", "found"),
    [
        ("GET /v2", "extensions"),
        ("GET /v2/", "extensions"),
        ("GET /v2/health/live", "live"),
        ("GET /v2/health/ready", "ready"),
    ],
)
def test_urls_of_the_server(request_line, found):
    status, _, content, _ = ask(request_line)
    assert (status, found in content) == (200, True)


@pytest.mark.parametrize(
    ("request_line", "spec"),
    [
        ("GET /v2/models/m", ("m", None, None)),
        ("GET /v2/models/m/ready", ("m", None, None)),
        ("GET /v2/models/m/versions/007", ("m", 7, None)),
        ("GET /v2/models/m/versions/stable", ("m", None, "stable")),
        ("GET /v2/models/a%20b%2Fc:d", ("a b/c:d", None, None)),
        ("GET /v2/models/%C3%A9", ("é", None, None)),
    ],
)
def test_urls_of_models(request_line, spec):
    assert ask(request_line)[3].asked == spec


@pytest.mark.parametrize(
    ("path", "missing"),
    [
        ("/v2/models/m/infer", "Latest(m)"),
        ("/v2/models/m/versions/007/infer", "Specific(m, 7)"),
    ],
)
def test_inference_finds_its_version(path, missing):
    status, _, content, _ = ask(f"POST {path}")
    assert (status, content) == (404, {"error": f"Servable not found for request: {missing}"})


@pytest.mark.parametrize(
    "path",
    [
        "/v2/models",
        "/v2/models/",
        "/v2/models//infer",
        "/v2/models/m/",
        "/v2/models/m/infer/",
        "/v2/models/m/versions",
        "/v2/models/m/versions/",
        "/v2/models/m/versions//infer",
        "/v2/models/m/explain",
        "/v2/models/m/versions/99999999999999999999",
        "/v2/health",
        "/v2/what",
        "/v2/repository/index",
        "/v2//",
    ],
)
def test_what_is_not_there(path):
    status, _, content, models = ask(f"GET {path}")
    assert (status, models.asked) == (404, None)
    assert path in content["error"] or "Could not find version" in content["error"]


@pytest.mark.parametrize(
    ("request_line", "allowed"),
    [
        ("GET /v2/models/m/infer", b"POST"),
        ("POST /v2", b"GET"),
        ("HEAD /v2/models/m", b"GET"),
        ("POST /v2/health/live", b"GET, HEAD"),
        ("OPTIONS /v2/models/m", b"GET"),
    ],
)
def test_other_methods_are_told_which_there_are(request_line, allowed):
    status, headers, _, _ = ask(request_line)
    assert (status, headers[b"allow"]) == (405, allowed)


@pytest.mark.parametrize("path", ["/v2x", "/v1/v2", "/V2"])
def test_only_paths_below_v2_are_of_the_protocol(path):
    status, headers, _, _ = ask(f"GET {path}")
    assert (status, headers[b"content-type"]) == (404, b"text/html")

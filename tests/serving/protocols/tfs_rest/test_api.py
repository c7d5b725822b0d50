"""What TensorFlow Serving's URLs ask for."""

from __future__ import annotations

import asyncio
import json

import pytest

from timonel.serving.asgi import Router
from timonel.serving.inference.flow import Flow
from timonel.serving.manager.catalogue import Catalogue, ModelSpec
from timonel.serving.protocols.tfs_rest.api import (
    COMPUTE,
    RestApi,
    spec_of,
)
from timonel.serving.status import StatusError, not_found
from timonel.serving.telemetry.monitor import Monitor


class Models(Catalogue):
    @property
    def names(self):
        raise not_found("list")

    def statuses(self, name, version=None):
        raise not_found(repr(("status", name, version)))

    def metadata(self, spec):
        raise not_found(repr(("metadata", spec.name, spec.version, spec.label)))


def ask(method, target):
    """Return the status and the error."""
    sent = []

    async def send(message):
        sent.append(message)

    async def receive():
        return {"type": "http.request", "body": b"{}"}

    path, _, query = target.partition("?")
    scope = {
        "type": "http",
        "method": method,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [],
    }
    app = Router(RestApi(Flow(Models(), None, Monitor())).routes())
    asyncio.run(app(scope, receive, send))
    return sent[0]["status"], json.loads(sent[1]["body"])["error"]


@pytest.mark.parametrize(
    ("target", "verb", "spec"),
    [
        ("/v1/models/m:predict", "predict", ModelSpec("m")),
        ("/V1/Models/m/Versions/12:predict", "predict", ModelSpec("m", 12)),
        ("/v1/models/m/labels/new:predict", "predict", ModelSpec("m", None, "new")),
        ("/v1/models/m:classify", "classify", ModelSpec("m")),
        ("/v1/models/m/versions/3:regress", "regress", ModelSpec("m", 3)),
        ("/v1/models/a%3Ab:predict", "predict", ModelSpec("a:b")),
        ("/v1/models/m/labels/a%2Fb:predict", "predict", ModelSpec("m", None, "a/b")),
        (f"/v1/models/{'m' * 1000}:predict", "predict", ModelSpec("m" * 1000)),
    ],
)
def test_compute_requests(target, verb, spec):
    match = COMPUTE.fullmatch(target)
    assert (match[4], spec_of(match)) == (verb, spec)
    status, error = ask("POST", target)
    assert (status, "Malformed" in error) in {(404, False), (400, False)}


@pytest.mark.parametrize(
    ("target", "asked"),
    [
        ("/v1/models/metadata", ("status", "metadata", None)),
        ("/v1/models/m/labels/x/metadata", ("metadata", "m", None, "x")),
        ("/v1/models/m%FF", ("status", "m\ufffd", None)),
        ("/v1/models/m%zz", ("status", "m%zz", None)),
        ("/v1/models/m", ("status", "m", None)),
        ("/v1/models/m/versions/0007", ("status", "m", 7)),
        (f"/v1/models/m/versions/{'0' * 5001}7", ("status", "m", 7)),
        (f"/v1/models/m/versions/000{2**63 - 1}", ("status", "m", 2**63 - 1)),
        ("/v1/models/m/labels/x", ("status", "m", None)),
        ("/v1/models/m/metadata", ("metadata", "m", None, None)),
        ("/v1/models/m/versions/7/metadata", ("metadata", "m", 7, None)),
        ("/v1/models/a%2Fb%3Ac+d", ("status", "a/b:c+d", None)),
        ("/v1/models/m?x=1", ("status", "m?x=1", None)),
    ],
)
def test_reads(target, asked):
    assert ask("GET", target) == (404, repr(asked))


def test_the_list_of_models():
    assert ask("GET", "/v1/models") == (404, "list")


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("GET", "/v1/config"),
        ("GET", "/v1/models/m:predict"),
        ("POST", "/v1/models/m"),
        ("POST", "/v1/models/m:Predict"),
        ("POST", "/v1/models/m:predict?x=1"),
        ("POST", "/v1/models/m/version/1:predict"),
        ("POST", "/v1/models/m/versions/1/labels/x:predict"),
        ("POST", "/v1/models/m/versions/one:predict"),
        ("POST", "/v1/models/m/versions/\u0661:predict"),
        ("POST", "/v1/model\u017f/m:predict"),
        ("PUT", "/v1/models/m:predict"),
        ("GET", "/v1/"),
        ("GET", "/v1/models/"),
    ],
)
def test_anything_else_is_malformed(method, target):
    assert ask(method, target) == (400, f"Malformed request: {method} {target}")


@pytest.mark.parametrize("target", ["/v1/models/versions/3", "/v1/models/labels/x/metadata"])
def test_a_model_must_be_named(target):
    assert ask("GET", target) == (400, "Missing model name in request.")


@pytest.mark.parametrize("digits", ["9" * 20, str(2**63), "1" * 5000])
def test_no_version_beyond_64_bits_is_found(digits):
    message = f"Servable not found for request: Specific(m, {digits[:64]})"
    assert ask("GET", f"/v1/models/m/versions/{digits}") == (404, message)
    with pytest.raises(StatusError, match="NOT_FOUND"):
        spec_of(COMPUTE.fullmatch(f"/v1/models/m/versions/{digits}:predict"))

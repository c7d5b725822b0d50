"""The document is valid OpenAPI, and the server answers at each of its paths."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from tests.contracts.runtimes import FakeModel
from timonel._version import __version__
from timonel.serving.asgi import Router
from timonel.serving.batching.scheduling import scheduled
from timonel.serving.console.openapi import openapi_route
from timonel.serving.inference.flow import Flow
from timonel.serving.manager.catalogue import Catalogue, Servable
from timonel.serving.protocols.monitoring import monitoring_routes
from timonel.serving.protocols.tfs_rest.api import RestApi
from timonel.serving.protocols.v2.api import InferenceApi
from timonel.serving.settings.server import METRICS_PATH
from timonel.serving.telemetry.monitor import Monitor
from timonel.serving.telemetry.prometheus import metrics_route


def ask(app, method, path):
    sent = []

    async def send(message):
        sent.append(message)

    async def receive():
        return {"type": "http.request", "body": b"{}"}

    scope = {"type": "http", "method": method, "raw_path": path.encode(), "query_string": b""}
    asyncio.run(app({**scope, "headers": []}, receive, send))
    return sent[0]["status"], sent[1]["body"]


@pytest.fixture(scope="module")
def document():
    status, body = ask(Router([openapi_route()]), "GET", "/openapi.json")
    assert status == 200
    return json.loads(body)


def test_the_document_is_valid(document):
    OpenAPIV31SpecValidator(document).validate()
    assert document["info"]["version"] == __version__


def test_every_described_path_is_answered(document):
    catalogue = Catalogue({"m": {"label": 3}})
    catalogue.publish("m", {3: Servable("m", 3, scheduled(FakeModel(2.0)))}, ())
    with ThreadPoolExecutor(1) as pool:
        flow = Flow(catalogue, pool, Monitor())
        app = Router(
            [
                *RestApi(flow).routes(),
                *InferenceApi(flow).routes(),
                *monitoring_routes(catalogue, lambda: False),
                metrics_route(lambda: b"metrics", METRICS_PATH, pool),
            ]
        )
        for path, item in document["paths"].items():
            asked = path.format(model="m", version="3", label="label")
            for method in item.keys() - {"parameters"}:
                status, body = ask(app, method.upper(), asked)
                assert status in {200, 400, 404, 501}, path
                for unknown in (b"Malformed", b"Not a URL", b"<HTML>", b"not allowed"):
                    assert unknown not in body, path

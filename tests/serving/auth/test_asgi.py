"""The guard of the REST port, and the rights of its routes."""

from __future__ import annotations

import asyncio
import json

import pytest

from timonel.serving.asgi import Response, Route, Router, at
from timonel.serving.auth.asgi import ANONYMOUS, RestGuard
from timonel.serving.auth.control import AccessControl
from timonel.serving.auth.keys import change_entries
from timonel.serving.console.openapi import openapi_route
from timonel.serving.console.page.app import Page
from timonel.serving.inference.flow import Flow
from timonel.serving.manager.catalogue import Catalogue
from timonel.serving.protocols.monitoring import monitoring_routes
from timonel.serving.protocols.tfs_rest.api import RestApi
from timonel.serving.protocols.v2.api import InferenceApi
from timonel.serving.settings.auth import AccessSettings, LimitSettings, Right
from timonel.serving.settings.server import RestSettings
from timonel.serving.telemetry.monitor import Monitor
from timonel.serving.telemetry.prometheus import metrics_route


def guarded(answer, **settings):
    """An application whose ``/readyz`` is open."""
    control = AccessControl(AccessSettings(**settings))
    routes = [
        Route(frozenset(), at("/readyz"), answer, None),
        Route(frozenset(), at(".*"), answer),
    ]
    return Router(routes, RestGuard(control))


async def ask(app, path="/v1/models/m:predict", *, client="10.0.0.1", method="POST", parts=(b"",)):
    sent = []
    messages = [
        {"type": "http.request", "body": part, "more_body": i < len(parts) - 1}
        for i, part in enumerate(parts)
    ]

    async def receive():
        return messages.pop(0) if messages else {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [],
        "client": (client, 1),
    }
    await app(scope, receive, send)
    start, *bodies = sent
    body = b"".join(message["body"] for message in bodies)
    return start["status"], body, dict(start["headers"])


def test_no_more_requests_at_once_than_allowed():
    async def run():
        go = asyncio.Event()

        async def slow(request):
            await go.wait()
            if request.target.endswith("bad:predict"):
                raise RuntimeError("a defect")
            return Response(200, b"{}")

        app = guarded(slow, limits=LimitSettings(max_requests=2))
        first = asyncio.create_task(ask(app))
        second = asyncio.create_task(ask(app, "/v1/models/bad:predict"))
        await asyncio.sleep(0)
        status, body, headers = await ask(app)
        assert (status, headers[b"retry-after"]) == (503, b"1")
        assert headers[b"x-timonel-not-started"] == b"1"
        assert json.loads(body) == {"error": "too many requests at once"}
        go.set()
        assert (await first)[0] == 200
        with pytest.raises(RuntimeError):
            await second
        assert [task[0] for task in [await ask(app), await ask(app)]] == [200, 200]

    asyncio.run(run())


def test_a_closed_server_names_no_model_to_those_without_a_key(tmp_path):
    change_entries(tmp_path / "keys.json", lambda _: [])
    seen = []

    async def look(request):
        seen.append(request.scope.get(ANONYMOUS))
        return Response(200, b"{}")

    async def run():
        await ask(guarded(look, limits=LimitSettings(max_requests=9)), "/readyz")
        await ask(guarded(look, api_keys=str(tmp_path / "keys.json")), "/readyz")
        assert (await ask(guarded(look, api_keys=str(tmp_path / "keys.json"))))[0] == 401

    asyncio.run(run())
    assert seen == [None, True]


def routes(**settings):
    """All routes of a server."""
    catalogue, monitor, rest = Catalogue(), Monitor(), RestSettings(**settings)
    flow = Flow(catalogue, None, monitor)
    return [
        *RestApi(flow, rest).routes(),
        *InferenceApi(flow, rest).routes(),
        *monitoring_routes(catalogue, lambda: False, monitor.answers),
        metrics_route(monitor.page, "/metrics", None),
        openapi_route(),
        *Page(catalogue, monitor).routes(),
    ]


@pytest.mark.parametrize(
    ("request_line", "right"),
    [
        ("GET /livez", None),
        ("POST /livez", None),
        ("GET /v2/health/ready", None),
        ("GET /", None),
        ("GET /page/page.js", None),
        ("GET /page/live", Right.USE),
        ("GET /page/models/m/1", Right.USE),
        ("GET /page/models/page.js", Right.USE),
        ("GET /%70age/page.js", Right.USE),
        ("GET /v1/models", Right.USE),
        ("POST /v1/models/m:predict", Right.USE),
        ("GET /v1/models/m/metadata", Right.USE),
        ("GET /v2/models/m", Right.USE),
        ("POST /v2/models/m/infer", Right.USE),
        ("GET /monitoring/answers", Right.ADMIN),
        ("GET /monitoring/answers?since=1", Right.ADMIN),
        ("GET /Monitoring/Answers", Right.USE),
        ("GET /metrics", Right.USE),
        ("OPTIONS /metrics", Right.USE),
        ("GET /openapi.json", Right.USE),
        ("OPTIONS /openapi.json", Right.USE),
        ("OPTIONS /V1/models/m:predict", None),
        ("OPTIONS /v2/models/m/infer", None),
        ("GET /v1/../livez", Right.USE),
        ("GET //livez", Right.USE),
        ("GET /livez\n", Right.USE),
        ("DELETE /anything", Right.USE),
    ],
)
def test_rights_by_url(request_line, right):
    method, _, target = request_line.partition(" ")
    asked = []

    async def guard(needed, request, answer):
        asked.append(needed)
        return Response(200, b"")

    path, _, query = target.partition("?")
    scope = {"method": method, "raw_path": path.encode(), "query_string": query.encode()}

    async def send(_):
        pass

    asyncio.run(Router(routes(cors=True), guard)(scope, None, send))
    assert asked == [right]

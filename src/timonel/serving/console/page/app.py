"""ASGI middleware for the web page and the OpenAPI document."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import Any, Final
from urllib.parse import parse_qs, unquote

import orjson

from timonel._version import __version__
from timonel.serving.asgi import App, Receive, Scope, Send
from timonel.serving.auth.policy import viewer_may
from timonel.serving.auth.url_rights import STATIC
from timonel.serving.console.openapi.document import Facts
from timonel.serving.console.page.history import ALL, Sampler
from timonel.serving.console.page.responses import Response, fresh, static_files
from timonel.serving.console.page.views import ServerDescription, form_view, model_view
from timonel.serving.inference import DataPlane
from timonel.serving.manager.catalogue import ModelSpec
from timonel.serving.settings import ServerSettings
from timonel.serving.settings.auth import Action
from timonel.serving.settings.base import EVERY_MODEL
from timonel.serving.settings.dialect import DIALECTS
from timonel.serving.status import Code, StatusError
from timonel.serving.telemetry.monitor import Monitor

_PACKAGE: Final = "timonel.serving.console.page"
_FORM: Final = re.compile(r"/page/models/([^/]+)/(\d{1,19})\Z", re.ASCII)
_STATUS: Final = {Code.NOT_FOUND: 404, Code.INVALID_ARGUMENT: 400}


def with_page(
    app: App,
    settings: ServerSettings,
    plane: DataPlane,
    monitor: Monitor,
    pool: Executor,
    *,
    is_draining: Callable[[], bool],
) -> App:
    """Add the page and ``/openapi.json`` to a REST application, if enabled.

    Args:
        app: Application for all other requests.
        settings: The server's settings.
        plane: Data plane with the models.
        monitor: Source of the plots' data.
        pool: Executor for large responses.
        is_draining: Whether the server has been asked to stop.
    """
    lists = DIALECTS[settings.dialect].lists_models
    if not (lists or settings.rest.page):
        return app
    facts = Facts(
        release=__version__,
        is_closed=settings.access.is_closed,
        lists=lists,
        metrics_path=settings.monitoring.metrics_path,
    )
    sampler = Sampler(monitor) if settings.rest.page else None
    return PageApp(app, ServerDescription(plane, facts), pool, sampler, is_draining)


class PageApp:
    """Answer requests for the page and OpenAPI; pass on all others.

    Args:
        app: Application for all other requests.
        description: Description of the models.
        pool: Executor for large responses.
        sampler: History for the page's plots; None to serve no page.
        is_draining: Whether the server has been asked to stop.
    """

    def __init__(
        self,
        app: App,
        description: ServerDescription,
        pool: Executor,
        sampler: Sampler | None,
        is_draining: Callable[[], bool] = lambda: False,
    ) -> None:
        self._app = app
        self._description = description
        self._pool = pool
        self._sampler = sampler
        self._is_draining = is_draining
        self._files = static_files(_PACKAGE, STATIC) if sampler is not None else {}
        self._started = time.time()

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Answer a request, or pass it to the application."""
        if scope["type"] != "http" or scope["method"] not in {"GET", "HEAD"}:
            return self._app(scope, receive, send)
        return self._read(scope, receive, send)

    async def _read(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            answer = await self._answer(scope)
        except StatusError as error:
            answer = Response(_STATUS.get(error.code, 500), orjson.dumps({"error": error.message}))
        if answer is None:
            await self._app(scope, receive, send)
            return
        await answer.send(scope, send)

    async def _answer(self, scope: Scope) -> Response | None:
        path = scope["raw_path"].decode("latin-1")
        if (file := self._files.get(path)) is not None:
            return file.response(scope)
        if path == "/openapi.json":
            seen = self._description.seen(Action.METADATA)
            run = asyncio.get_running_loop().run_in_executor
            return fresh(await run(self._pool, self._description.document, seen))
        if self._sampler is not None and path == "/page/live":
            query = parse_qs(scope["query_string"].decode("latin-1"))
            return fresh(orjson.dumps(self._live(query, self._sampler)))
        if self._sampler is not None and (found := _FORM.match(path)):
            return fresh(orjson.dumps(self._form(unquote(found[1]), int(found[2]))))
        return None

    def _live(self, query: dict[str, list[str]], sampler: Sampler) -> dict[str, Any]:
        sampler.look()
        seen = self._description.seen(Action.STATUS)
        sees_all = viewer_may(Action.STATUS, EVERY_MODEL, is_closed=self._description.is_closed)
        names = {*seen, ALL} if sees_all else set(seen)
        chosen = query.get("model", [ALL])[0]
        history = sampler.history
        plane = self._description.plane
        live: dict[str, Any] = {
            "server": {
                "release": self._description.release,
                "uptime": time.time() - self._started,
                "draining": self._is_draining(),
                "unready": [name for name in plane.unready() if name in names],
                "everything": sees_all,
            },
            "models": [
                model_view(plane, name, self._description.labels(name), history.latest(name))
                for name in seen
            ],
        }
        if chosen in names:
            live["history"] = history.since(chosen, query.get("after", [""])[0])
        return live

    def _form(self, name: str, version: int) -> dict[str, Any]:
        plane = self._description.plane
        metadata = plane.metadata(ModelSpec(name, version))
        return form_view(metadata, plane.labels(name, version))

"""Routes of the web page."""

from __future__ import annotations

import asyncio
import functools
import importlib.resources
import re
import time
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import parse_qs, unquote

import orjson

from timonel._version import __version__
from timonel.serving.asgi import Request, Response, Route, at
from timonel.serving.client.curl import stored_row
from timonel.serving.console.page.history import ALL, TrafficHistory
from timonel.serving.console.page.responses import StaticFile, fresh, page_response, static_files
from timonel.serving.console.page.views import form_view, model_view
from timonel.serving.manager.catalogue import Catalogue, ModelSpec
from timonel.serving.status import StatusError
from timonel.serving.telemetry.monitor import Monitor

_PACKAGE: Final = "timonel.serving.console.page"
_READS: Final = frozenset({"GET", "HEAD"})


def page_files() -> dict[str, StaticFile]:
    """Return the files of the page by path."""
    names = [each.name for each in (importlib.resources.files(_PACKAGE) / "static").iterdir()]
    paths = {"/" if name == "index.html" else f"/page/{name}": name for name in names}
    return static_files(_PACKAGE, paths)


class Page:
    """The web page of a server."""

    def __init__(
        self,
        catalogue: Catalogue,
        monitor: Monitor,
        is_draining: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._catalogue = catalogue
        self._history = TrafficHistory(monitor)
        self._clock = clock
        self._is_draining = is_draining
        self._started = time.time()

    def routes(self) -> list[Route]:
        """Return the routes of the page: files, live data and forms."""
        return [
            Route(_READS, at("/page/live"), self._live),
            Route(_READS, at(r"/page/models/([^/?]+)/([0-9]{1,19})"), self._form),
            *(
                # The page asks for a key, so its files load without one; its data does not.
                Route(_READS, at(re.escape(path)), functools.partial(_answer_file, file), None)
                for path, file in page_files().items()
            ),
        ]

    async def _live(self, request: Request) -> Response:
        query = parse_qs(request.scope["query_string"].decode("latin-1"))
        catalogue, history = self._catalogue, self._history
        # Takes at most a millisecond in the event loop; another thread would delay it more.
        history.look(self._clock(), time.time())
        names = catalogue.names
        chosen = query.get("model", [ALL])[0]
        live: dict[str, Any] = {
            "server": {
                "release": __version__,
                "uptime": time.time() - self._started,
                "draining": self._is_draining(),
                "unready": list(catalogue.unready()),
            },
            "models": [model_view(catalogue, name, history.latest(name)) for name in names],
        }
        if chosen in {*names, ALL}:
            live["history"] = history.columns(chosen)
        return fresh(orjson.dumps(live))

    async def _form(self, request: Request) -> Response:
        name, version = unquote(request.match[1]), int(request.match[2])
        try:
            metadata = self._catalogue.metadata(ModelSpec(name, version))
        except StatusError as error:
            return page_response(404, orjson.dumps({"error": error.message}))
        servable = self._catalogue.loaded(name).get(version)
        labels = servable.labels if servable else ()
        folder = servable.folder if servable else None
        row = await asyncio.to_thread(stored_row, folder) if folder else {}
        return fresh(orjson.dumps(form_view(metadata, labels, row)))


async def _answer_file(file: StaticFile, request: Request) -> Response:
    return file.response(request.scope)

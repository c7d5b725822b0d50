"""Routes of the web page."""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import parse_qs, unquote

import orjson

from timonel._version import __version__
from timonel.serving.asgi import Request, Response, Route, at
from timonel.serving.console.page.history import ALL, Sampler
from timonel.serving.console.page.responses import StaticFile, fresh, page_response, static_files
from timonel.serving.console.page.views import form_view, model_view
from timonel.serving.manager.catalogue import Catalogue, ModelSpec
from timonel.serving.status import StatusError
from timonel.serving.telemetry.monitor import Monitor

_PACKAGE: Final = "timonel.serving.console.page"
_FILES: Final = {
    "/": "index.html",
    **{
        f"/page/{name}": name
        for name in (
            "page.css", "answers.js", "changes.js", "charts.js", "dom.js", "form.js", "icon.svg",
            "images.js", "key.js", "models.js", "outcome.js", "page.js", "plots.js", "request.js",
            "versions.js",
        )
    },
}  # fmt: skip
"""Files of the page, by path; `auth.control` lets anyone read them."""
_READS: Final = frozenset({"GET", "HEAD"})


class Page:
    """The web page of a server."""

    def __init__(
        self,
        catalogue: Catalogue,
        monitor: Monitor,
        is_draining: Callable[[], bool] = lambda: False,
        *,
        sampler: Sampler | None = None,
    ) -> None:
        self._catalogue = catalogue
        self._sampler = sampler or Sampler(monitor)
        self._is_draining = is_draining
        self._started = time.time()

    def routes(self) -> list[Route]:
        """Return the routes of the page: files, live data and forms."""
        files = static_files(_PACKAGE, _FILES)
        return [
            Route(_READS, at("/page/live"), self._live),
            Route(_READS, at(r"/page/models/([^/?]+)/([0-9]{1,19})"), self._form),
            *(
                Route(_READS, at(re.escape(path)), functools.partial(_answer_file, file))
                for path, file in files.items()
            ),
        ]

    async def _live(self, request: Request) -> Response:
        query = parse_qs(request.scope["query_string"].decode("latin-1"))
        self._sampler.look()
        catalogue, history = self._catalogue, self._sampler.history
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
        return fresh(orjson.dumps(form_view(metadata, labels)))


async def _answer_file(file: StaticFile, request: Request) -> Response:
    return file.response(request.scope)

"""ASGI application with the pages of endpoints, and the sampler of their history.

It reads the documents of endpoints and changes nothing. It is for browsers on this machine: the
control plane listens on a loopback address, and requests for other host names are refused, as web
pages of other sites could read the answers otherwise (DNS rebinding).
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import parse_qs

import orjson

from timonel.endpoints.control.console.history import (
    PERIOD_S,
    EndpointPoint,
    History,
    Sample,
    changes,
    columns,
)
from timonel.endpoints.control.console.views import (
    EndpointView,
    RolloutView,
    endpoint_page,
    list_page,
    message_page,
    without_key_files,
)
from timonel.endpoints.control.faults import Faults
from timonel.endpoints.control.scrape import ReplicaLoad
from timonel.endpoints.folder import EndpointFolder, EndpointStatus, list_endpoints, open_endpoint
from timonel.endpoints.rollouts.documents import RolloutState, rollouts
from timonel.endpoints.rollouts.report import report_page
from timonel.errors import NotFoundError, TimonelError
from timonel.serving.asgi import Receive, Response, Scope, Send, header
from timonel.serving.auth.origin_check import is_host_allowed
from timonel.serving.console.page.responses import HTML, fresh, static_files
from timonel.storage.document_store import DocumentStore
from timonel.tracking.redaction import redact_text

Loads = Callable[[], Mapping[str, Mapping[int, ReplicaLoad | None]]]

_T = TypeVar("_T")
_SHARED: Final = ("page.css", "charts.js", "dom.js", "icon.svg")
_OWN: Final = ("endpoints.css", "endpoints.js")
_PATH: Final = re.compile(
    r"/endpoints/([a-z0-9-]{1,30})(/history|/rollouts/(\d{1,9}))?/?\Z", re.ASCII
)
_ROLLOUTS: Final = 5
_REPORT_POLICY: Final = (
    b"default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    b"form-action 'none'; frame-ancestors 'none'"
)
"""A report is one file with its styles and its figure; it has no scripts."""

logger = logging.getLogger(__name__)


class Console:
    """Pages of the endpoints of a workspace.

    Args:
        history: Returns the file for the history of an endpoint, whose folder exists.
        loads: Return the recent load by endpoint and version.
        clock: Seconds since the epoch.
    """

    def __init__(
        self,
        documents: DocumentStore,
        history: Callable[[str], Path],
        loads: Loads,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._documents = documents
        self._history_of = history
        self._loads = loads
        self._clock = clock
        # Apart from the threads of the control loop. Matplotlib, which draws reports, needs one.
        self._pool = ThreadPoolExecutor(1, "pages")
        self._histories: dict[str, History] = {}
        self._statuses: dict[str, EndpointStatus] = {}
        self._faults: dict[str, Faults] = {}
        self._files = static_files(
            "timonel.serving.console.page", {f"/page/{name}": name for name in _SHARED}
        ) | static_files("timonel.endpoints.control.console", {f"/page/{n}": n for n in _OWN})

    async def sample(self) -> None:
        """Add a point to each history every few seconds, until cancelled."""
        while True:
            now = self._clock()
            try:
                await self._run(self.take, now, self._loads())
            except Exception:
                # Traffic must not depend on pages.
                logger.exception("cannot record the history of endpoints")
            await asyncio.sleep(PERIOD_S)

    def take(self, now: float, loads: Mapping[str, Mapping[int, ReplicaLoad | None]]) -> None:
        """Add a point to the history of each endpoint.

        Args:
            now: The time in seconds since the epoch.
            loads: Recent load by endpoint and version.
        """
        found = {folder.name: folder for folder in list_endpoints(self._documents)}
        for name in self._histories.keys() - found.keys():
            for known in (self._histories, self._statuses, self._faults):
                known.pop(name, None)
        for name, folder in found.items():
            if name not in self._histories:
                self._histories[name] = History(self._history_of(name))
                self._faults[name] = Faults(name)
            with self._faults[name].of("history"):
                status, access = folder.status(), folder.revision().spec.access
                before = self._statuses.get(name, status)
                self._statuses[name] = status
                is_moved = status.routed not in (0, before.routed)
                cause = folder.revision(status.routed).cause if is_moved else ""
                events = (
                    redact_text(without_key_files(event, access))
                    for event in changes(before, status, cause)
                )
                point = point_of(now, status, loads.get(name, {}), tuple(events))
                self._histories[name].add(point)

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "http":
            response = _refusal(scope) or await self._respond(scope)
            await response.send(scope, send)

    async def _respond(self, scope: Scope) -> Response:
        path = scope["path"]
        if path == "/livez":
            return Response(200, b"")
        if (file := self._files.get(path)) is not None:
            return file.response(scope)
        try:
            return await self._run(self._read, path, scope["query_string"])
        except NotFoundError as error:
            return _message(404, "Not found", str(error))
        except TimonelError as error:
            return _message(500, "Not readable", str(error))

    async def _run(self, function: Callable[..., _T], *arguments: object) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, function, *arguments)

    def _read(self, path: str, query: bytes) -> Response:
        now = self._clock()
        if path == "/":
            return _page(self._list(now))
        if (match := _PATH.match(path)) is None:
            raise NotFoundError(f"no such page: {path}")
        name, part, number = match.groups()
        folder = open_endpoint(self._documents, name)
        if part is None:
            return _page(endpoint_page(self._view(folder), now))
        if number is None:
            after = parse_qs(query.decode("latin-1")).get("after", [""])[0]
            return fresh(orjson.dumps(self._history(name, after)))
        documents = {each.number: each for each in rollouts(self._documents, folder.name)}
        if int(number) not in documents:
            raise NotFoundError(f"{name} has no rollout {number}")
        body = report_page(documents[int(number)], name)
        access = folder.revision().spec.access
        return fresh(without_key_files(body, access).encode(), HTML, _REPORT_POLICY)

    def _list(self, now: float) -> str:
        views, unreadable = [], {}
        for folder in list_endpoints(self._documents):
            try:
                views.append(self._view(folder))
            except TimonelError as error:
                unreadable[folder.name] = str(error)
        return list_page(views, unreadable, now)

    def _history(self, name: str, after: str) -> dict[str, object]:
        """Return the points, all or none: none if there is nothing after the last known point."""
        history = self._histories.get(name)
        points = () if history is None else history.points
        is_known = points and after == str(round(points[-1].at, 1))
        return columns(() if is_known else points)

    def _view(self, folder: EndpointFolder) -> EndpointView:
        latest, status = folder.revision(), folder.status()
        history = self._histories.get(folder.name)
        return EndpointView(
            latest=latest,
            routed=folder.revision(status.routed) if status.routed else None,
            status=status,
            is_deleted=folder.is_deleted,
            rollouts=[
                RolloutView(each.number, each.rollout(), each.state() or RolloutState())
                for each in rollouts(self._documents, folder.name)[-_ROLLOUTS:]
            ],
            points=() if history is None else history.points,
        )


def _refusal(scope: Scope) -> Response | None:
    if not is_host_allowed(header(scope["headers"], b"host"), frozenset()):
        return _message(403, "Refused", "Use localhost or 127.0.0.1 to open this page.")
    if scope["method"] not in {"GET", "HEAD"}:
        refused = _message(405, "Refused", "This page only shows endpoints.")
        return refused._replace(headers=(*refused.headers, (b"allow", b"GET, HEAD")))
    return None


def point_of(
    now: float,
    status: EndpointStatus,
    loads: Mapping[int, ReplicaLoad | None],
    events: tuple[str, ...],
) -> EndpointPoint:
    """Return a point of an endpoint's history."""
    samples = {}
    for version, each in status.versions.items():
        load = loads.get(version)
        samples[version] = Sample(
            rate=None if load is None else round(load.rate, 3),
            concurrency=None if load is None else round(load.concurrency, 3),
            held=each.held,
            ready=each.ready,
            desired=each.desired,
        )
    return EndpointPoint(at=now, versions=samples, events=events)


def _page(text: str) -> Response:
    return fresh(text.encode(), HTML)


def _message(status: int, title: str, text: str) -> Response:
    return _page(message_page(title, text))._replace(status=status)

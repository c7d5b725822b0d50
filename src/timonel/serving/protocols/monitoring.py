"""Probes of the server, and answers to compared requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from timonel.serving.asgi import Request, Response, Route, at
from timonel.serving.auth.asgi import ANONYMOUS
from timonel.serving.manager.catalogue import Catalogue
from timonel.serving.settings.auth import Right
from timonel.serving.settings.server import ANSWERS_PATH
from timonel.serving.telemetry.answer_log import AnswerLog

_TEXT: Final = b"text/plain"
_OK: Final = Response(200, b"ok", _TEXT)


def monitoring_routes(
    catalogue: Catalogue, is_draining: Callable[[], bool], answers: AnswerLog | None = None
) -> list[Route]:
    """Return the routes of probes and answers."""

    async def live(request: Request) -> Response:
        hung = catalogue.hung()
        return _unavailable(request, "hung", hung) if hung else _OK

    async def ready(request: Request) -> Response:
        unready = catalogue.unready()
        if is_draining():
            return Response(503, b"draining", _TEXT)
        return _unavailable(request, "not loaded", unready) if unready else _OK

    routes = [
        Route(frozenset(), at("/livez"), live, None),
        Route(frozenset(), at("/readyz"), ready, None),
    ]
    if answers is not None:
        recent = answers

        async def answered(request: Request) -> Response:
            return Response(200, recent.since(request.scope["query_string"]))

        # Answers to other clients.
        routes.append(Route(frozenset({"GET"}), at(ANSWERS_PATH), answered, Right.ADMIN))
    return routes


def _unavailable(request: Request, problem: str, models: Sequence[str]) -> Response:
    names = "" if request.scope.get(ANONYMOUS) else f": {', '.join(models)}"
    return Response(503, f"{problem}{names}".encode(), _TEXT)

"""The OpenAPI document of the REST port: a static file."""

from __future__ import annotations

import importlib.resources

import orjson

from timonel._version import __version__
from timonel.serving.asgi import Request, Response, Route, at


def openapi_route() -> Route:
    """Return the route of the document."""
    text = (
        importlib.resources.files("timonel.serving.console").joinpath("openapi.json").read_bytes()
    )
    document = orjson.loads(text)
    document["info"]["version"] = __version__
    response = Response(200, orjson.dumps(document))

    async def answer(_: Request) -> Response:
        return response

    return Route(frozenset({"GET", "HEAD"}), at(r"/openapi\.json"), answer)

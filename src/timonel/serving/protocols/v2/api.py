"""The Open Inference Protocol over REST: URLs and requests."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

from timonel.serving.asgi import (
    JSON,
    Answer,
    Request,
    Response,
    Route,
    at,
    encode_error,
    header,
    json_response,
)
from timonel.serving.futures import AT_ONCE_BYTES
from timonel.serving.inference.flow import Call, Flow, Outputs
from timonel.serving.manager.catalogue import ModelSpec
from timonel.serving.protocols.http import (
    TIMED_OUT,
    answering,
    body_of,
    correlation_of,
    preflight,
    unquoted,
    unzip,
)
from timonel.serving.protocols.v2 import rest_codec
from timonel.serving.protocols.v2.requests import (
    PROBES,
    InferCodec,
    InferRequest,
    spec_of,
    views,
)
from timonel.serving.settings.auth import Right
from timonel.serving.settings.server import RestSettings
from timonel.serving.status import invalid_argument, not_found

_BINARY: Final = b"application/octet-stream"
_LENGTH_DIGITS: Final = 18
_CORS: Final = (
    (b"access-control-allow-origin", b"*"),
    (b"access-control-allow-methods", b"POST, GET"),
    (b"access-control-allow-headers", b"Content-Type, Inference-Header-Content-Length"),
    (b"access-control-expose-headers", b"Inference-Header-Content-Length"),
)
_MODEL: Final = r"/v2/models/([^/?]+)(?:/versions/([^/?]+))?"
_PROBE: Final = frozenset({"GET", "HEAD"})
_GET: Final = frozenset({"GET"})
_OPTIONS: Final = frozenset({"OPTIONS"})
_Row = tuple[frozenset[str], re.Pattern[str], Answer]
_API: Final = at(r"/v2(?:/[^?]*)?")


class InferenceApi:
    """The Open Inference Protocol over REST."""

    def __init__(
        self,
        flow: Flow,
        settings: RestSettings | None = None,
        is_draining: Callable[[], bool] = lambda: False,
        max_body: int | None = None,
    ) -> None:
        self._flow = flow
        self._settings = settings or RestSettings()
        self._views = views(flow.catalogue, is_draining)
        self._max_body = max_body

    def routes(self) -> list[Route]:
        """Return the routes below ``/v2``."""
        headers = _CORS if self._settings.cors else ()
        table: list[tuple[frozenset[str], str, Answer]] = [
            (frozenset({"POST"}), rf"{_MODEL}/infer", self._infer),
            (_PROBE, "/v2/health/live", self._view("ServerLive")),
            (_PROBE, "/v2/health/ready", self._view("ServerReady")),
            (_GET, "/v2/?", self._view("ServerMetadata")),
            (_GET, _MODEL, self._view("ModelMetadata")),
            (_GET, rf"{_MODEL}/ready", self._view("ModelReady")),
        ]
        routes: list[_Row] = [(_OPTIONS, _API, preflight)] if headers else []
        for methods, path, answer in table:
            routes.append((methods, at(path), answer))
            routes += [(each, at(path), _not_allowed(methods)) for each in (_OPTIONS, frozenset())]
        routes.append((frozenset(), _API, self._missing))
        # Neither probes nor answers to OPTIONS show data.
        return [
            Route(m, p, answering(a, headers), None if m in {_PROBE, _OPTIONS} else Right.USE)
            for m, p, a in routes
        ]

    def _view(self, name: str) -> Answer:
        view, observed = self._views[name], self._flow.observed

        async def answer(request: Request) -> Response:
            spec = _spec(request) if request.match.groups() else ModelSpec("")
            if name in PROBES:
                found = view(spec)
            else:
                with observed("REST", "", spec.name, correlation_of(request.headers)):
                    found = view(spec)
            if name == "ModelReady":
                found = {"name": spec.name, **found}
            return json_response(found, 503 if False in found.values() else 200)

        return answer

    async def _infer(self, request: Request) -> Response:
        spec = _spec(request)
        try:
            body = await body_of(request, self._max_body)
            codec = _Infer(spec, request, body, self._max_body)
        except BaseException:
            with self._flow.observed("REST", ""):
                raise
        timeout_s, correlation = self._settings.timeout_s, correlation_of(request.headers)
        return await self._flow.run(codec, timeout_s, correlation, request.receive)

    async def _missing(self, request: Request) -> Response:
        path = request.target.partition("?")[0]
        raise not_found(f"Not a URL of the Open Inference Protocol: {path:.200}")


class _Infer(InferCodec[Response]):
    entrypoint = "REST"
    overdue = TIMED_OUT
    api = "infer"

    def __init__(
        self, spec: ModelSpec, request: Request, body: bytes, max_body: int | None
    ) -> None:
        self.model = spec.name
        self._spec = spec
        self._body = body
        self._max_body = max_body
        self._zipped = _is_gzip(request)
        self.size = len(body) + AT_ONCE_BYTES if self._zipped else len(body)
        self._json_length = _json_length(request)

    def decode(self) -> tuple[ModelSpec, InferRequest]:
        body = self._body
        if self._zipped:
            body = unzip(body, self._max_body)
            if not body:
                raise invalid_argument(
                    "The gzip body is damaged, or larger than 100 MiB when decompressed."
                )
        return self._spec, rest_codec.decode(body, self._json_length)

    def encode(self, call: Call, outputs: Sequence[Outputs]) -> Response:
        encode = rest_codec.encode
        body, json_length = encode(self.request, call.name, call.version, outputs[0])
        if json_length is None:
            return Response(200, body)
        length = (rest_codec.HEADER_LENGTH, b"%d" % json_length)
        return Response(200, body, _BINARY, (length,))


def _spec(request: Request) -> ModelSpec:
    name, version = request.match.groups()
    return spec_of(unquoted(name), unquoted(version))


def _is_gzip(request: Request) -> bool:
    encoding = header(request.headers, b"content-encoding").strip().lower()
    if encoding not in {b"", b"identity", b"gzip"}:
        raise invalid_argument(
            f"Unsupported Content-Encoding {encoding.decode('latin-1'):.40}. Use gzip or none."
        )
    return encoding == b"gzip"


def _json_length(request: Request) -> int | None:
    value = header(request.headers, rest_codec.HEADER_LENGTH).strip()
    if not value:
        return None
    if not value.isdigit() or len(value) > _LENGTH_DIGITS:
        raise invalid_argument(
            "The header Inference-Header-Content-Length must be a number of bytes, "
            f"got {value.decode('latin-1'):.40}."
        )
    return int(value)


def _not_allowed(methods: frozenset[str]) -> Answer:
    names = sorted(methods)
    body = encode_error(f"Method not allowed. Use {' or '.join(names)}.")
    response = Response(405, body, JSON, ((b"allow", ", ".join(names).encode()),))

    async def answer(_: Request) -> Response:
        return response

    return answer

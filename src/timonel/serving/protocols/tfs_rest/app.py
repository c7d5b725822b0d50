"""ASGI application for TensorFlow Serving's REST API.

It uses no framework, as the API is one prefix and a few responses: see docs/design/serving.md for
the cost of a framework per request.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import orjson
from google.protobuf import json_format, text_format

from timonel.serving.asgi import Receive, Scope, Send, is_gzipped, on_disconnect
from timonel.serving.inference import DataPlane, Metadata
from timonel.serving.inference.context import Observation
from timonel.serving.manager.model_config import config_from
from timonel.serving.manager.plan import VersionStatus
from timonel.serving.protocols.tfs_rest.http import (
    COMPUTING,
    CORS,
    JSON,
    TEXT,
    RestAction,
    RestResponse,
    Route,
    VersionTooLargeError,
    body_of,
    content_type,
    correlation_of,
    error_answer,
    is_preflight,
    is_rest,
    malformed,
    match,
    missing_name,
    unexpected,
)
from timonel.serving.protocols.tfs_rest.predict import PredictRequest, RestBackend
from timonel.serving.settings import ModelSettings
from timonel.serving.settings.server import ANSWERS_PATH
from timonel.serving.signature import Signature, TensorSpec
from timonel.serving.status import Code, StatusError, invalid_argument

_LOG = logging.getLogger(__name__)
_NOT_FOUND_PAGE = (
    b"<HTML><HEAD>\n<TITLE>404 Not Found</TITLE>\n</HEAD><BODY>\n<H1>Not Found</H1>\n"
    b"</BODY></HTML>\n"
)


class RestApp:
    """ASGI application for TensorFlow Serving's REST API.

    Args:
        backend: The parts shared with connections that bypass ASGI.
        is_draining: Whether the server has been asked to stop.
    """

    def __init__(
        self, backend: RestBackend, is_draining: Callable[[], bool] = lambda: False
    ) -> None:
        self._backend = backend
        self._is_draining = is_draining

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        target = _target(scope)
        of_api = is_rest(target)
        answer = await self._rest(scope, receive, target) if of_api else self._page(scope)
        body = answer.body
        headers = [(b"content-length", str(len(body)).encode())]
        if answer.content_type is not None:
            headers.insert(0, (b"content-type", answer.content_type))
        if of_api and self._backend.settings.cors:
            headers += CORS
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        if scope["method"] == "HEAD":
            body = b""
        await send({"type": "http.response.body", "body": body})

    def _page(self, scope: Scope) -> RestResponse:
        path, monitor = scope["path"], self._backend.monitor
        is_extended = self._backend.dialect.lists_models
        if path == ANSWERS_PATH and monitor is not None and is_extended:
            return RestResponse(200, monitor.answers.since(scope["query_string"]))
        if path == "/livez":
            return RestResponse(200, b"ok", b"text/plain")
        if path == "/readyz":
            unready = self._backend.plane.unready()
            if not unready and not self._is_draining():
                return RestResponse(200, b"ok", b"text/plain")
            reason = "draining" if self._is_draining() else f"not loaded: {', '.join(unready)}"
            return RestResponse(503, reason.encode(), b"text/plain")
        return RestResponse(404, _NOT_FOUND_PAGE, b"text/html")

    async def _rest(self, scope: Scope, receive: Receive, target: str) -> RestResponse:
        if scope["method"] == "OPTIONS":
            return RestResponse(200 if is_preflight(scope["headers"]) else 400, b"", None)
        try:
            route = match(scope["method"], target)
            if route.action not in COMPUTING:
                return self._read(scope, route, target)
            body = await body_of(receive)
        except VersionTooLargeError as error:
            self._count(Code.INVALID_ARGUMENT)
            if not self._backend.dialect.explains_bad_versions:
                return RestResponse(400, b"")
            return error_answer(invalid_argument(str(error)))
        except StatusError as error:
            self._count(error.code)
            return error_answer(error)
        except asyncio.CancelledError:
            self._count(Code.CANCELLED)
            raise
        return await self._compute(scope, receive, route, body)

    async def _compute(
        self, scope: Scope, receive: Receive, route: Route, body: bytes
    ) -> RestResponse:
        headers = scope["headers"]
        reply: asyncio.Future[RestResponse] = asyncio.get_running_loop().create_future()
        set_reply = partial(_set_reply, reply)
        request = PredictRequest(
            self._backend, route, content_type(headers), correlation_of(headers), set_reply
        )
        request.begin(body, zipped=is_gzipped(headers))
        if reply.done():
            return reply.result()

        def give_up() -> None:
            request.cancel()
            set_reply(error_answer(StatusError(Code.CANCELLED, "the request was cancelled")))

        try:
            with on_disconnect(receive, give_up):
                return await reply
        finally:
            request.cancel()

    def _read(self, scope: Scope, route: Route, target: str) -> RestResponse:
        """Answer from the state of the server, without running a model."""
        observation: Observation | None = None
        if self._backend.monitor is not None:
            found = correlation_of(scope["headers"])
            observation = self._backend.monitor.begin("REST", "", route.spec.name, found)
        code = Code.OK
        try:
            return RestResponse(200, self._content(route, target), TEXT if route.as_text else JSON)
        except Exception as error:  # noqa: BLE001 - costs one request, not the server
            if not isinstance(error, StatusError):
                _LOG.exception("%s %s failed", scope["method"], target)
                error = unexpected(error)
            code = error.code
            return error_answer(error)
        finally:
            if self._backend.monitor is not None and observation is not None:
                self._backend.monitor.end(observation, code)

    def _content(self, route: Route, target: str) -> bytes:
        if route.action is RestAction.LIST:
            if not self._backend.dialect.lists_models:
                raise missing_name()
            return orjson.dumps(models_view(self._backend.plane))
        if route.action is RestAction.CONFIG:
            if not self._backend.dialect.lists_models:
                raise malformed("GET", target)
            return config_text(self._backend.plane.configuration(), as_text=route.as_text)
        if route.action is RestAction.STATUS:
            # A label is ignored, as in TensorFlow Serving.
            return orjson.dumps(
                status_view(self._backend.plane.status(route.spec.name, route.spec.version))
            )
        return orjson.dumps(metadata_view(self._backend.plane.metadata(route.spec)))

    def _count(self, code: Code) -> None:
        """Count a request that was rejected before its model was known."""
        monitor = self._backend.monitor
        if monitor is not None:
            monitor.end(monitor.begin("REST", ""), code)


def _set_reply(reply: asyncio.Future[RestResponse], answer: RestResponse) -> None:
    # The task that awaits the future may have been cancelled.
    if not reply.done():
        reply.set_result(answer)


def _target(scope: Scope) -> str:
    raw: bytes = scope["raw_path"]
    query: bytes = scope["query_string"]
    return (raw + b"?" + query if query else raw).decode("utf-8", "surrogateescape")


_CREDENTIALS = re.compile(r"(?<=://)[^/@]*(?=@)")


def status_view(statuses: Sequence[VersionStatus]) -> dict[str, Any]:
    """Return the status of a model's versions."""
    return {
        "model_version_status": [
            {
                "version": str(status.number),
                "state": status.state.value,
                "status": _reason(status),
            }
            for status in statuses
        ]
    }


def metadata_view(metadata: Metadata) -> dict[str, Any]:
    """Return the signatures of a version."""
    signatures = {name: _signature(each) for name, each in metadata.signatures.items()}
    return {
        "model_spec": {
            "name": metadata.name,
            "signature_name": "",
            "version": str(metadata.version),
        },
        "metadata": {"signature_def": {"signature_def": signatures}},
    }


def models_view(plane: DataPlane) -> dict[str, Any]:
    """Return the list of all models, an extension of TensorFlow Serving's API."""
    return {
        "models": [
            {
                "name": name,
                "versions": [_listed(plane, name, status) for status in statuses],
            }
            for name, statuses in plane.models().items()
        ]
    }


def _listed(plane: DataPlane, name: str, status: VersionStatus) -> dict[str, Any]:
    outage = plane.outage(name, status.number)
    # A loaded version that cannot answer keeps the state that TensorFlow Serving would report, with
    # the reason added.
    reason = _reason(status) if outage is None else _failure(outage.code, outage.message)
    return {
        "version": str(status.number),
        "state": status.state.value,
        "status": reason,
        "labels": plane.labels(name, status.number),
    }


def config_text(models: Sequence[ModelSettings], *, as_text: bool) -> bytes:
    """Return the configured models as a ModelServerConfig.

    A server can be started with the text form, except for credentials within URLs, which are
    masked.

    Args:
        models: The configured models.
        as_text: Whether to write a text proto instead of JSON.
    """
    shown = [
        model.model_copy(update={"base_path": _CREDENTIALS.sub("***", model.base_path)})
        for model in models
    ]
    config = config_from(shown)
    if as_text:
        return text_format.MessageToString(config, as_utf8=True).encode()
    return orjson.dumps(json_format.MessageToDict(config, preserving_proto_field_name=True))


def _reason(status: VersionStatus) -> dict[str, str]:
    return _failure(status.code, status.message)


def _failure(code: Code, message: str) -> dict[str, str]:
    return {"error_code": code.name, "error_message": message}


def _signature(signature: Signature) -> dict[str, Any]:
    return {
        "inputs": _tensors(signature.inputs),
        "outputs": _tensors(signature.outputs),
        "method_name": signature.method_name,
        "defaults": _defaults(signature),
    }


def _tensors(specs: Mapping[str, TensorSpec]) -> dict[str, Any]:
    return {
        name: {
            "dtype": spec.dtype,
            "tensor_shape": {
                "dim": [{"size": str(size), "name": ""} for size in spec.shape or ()],
                "unknown_rank": spec.shape is None,
            },
            "name": spec.tensor,
        }
        for name, spec in specs.items()
    }


def _defaults(signature: Signature) -> dict[str, Any]:
    if not signature.defaults:
        return {}
    # Rare, and a TensorProto has too many fields to write out by hand.
    from timonel.serving.inference.conversion import tensor_json  # noqa: PLC0415 - imports TensorFlow

    return {name: tensor_json(value) for name, value in signature.defaults.items()}

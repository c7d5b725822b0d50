"""gRPC handlers: messages, deadlines, statuses and headers of calls."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, Final

import grpc

from timonel.serving.futures import AT_ONCE_BYTES, pool_for
from timonel.serving.grpc_requests import parse, refuse
from timonel.serving.inference.context import Correlation, Observation
from timonel.serving.inference.flow import Codec, Flow
from timonel.serving.manager.catalogue import ModelSpec
from timonel.serving.status import StatusError, invalid_argument

# For a call without a deadline gRPC reports either None or centuries.
_FOREVER_S: Final = 1e9
_NOT_OBSERVED: Final = contextlib.nullcontext(Observation("", "", ""))


class MessageCodec(Codec[bytes]):
    """A request over gRPC.

    `encode` returns the serialized response: writing large tensors directly is faster than filling
    a message first.
    """

    entrypoint = "GRPC"
    request_type: ClassVar[Any]

    def __init__(self, raw: bytes) -> None:
        self.size = len(raw)
        self._raw = raw

    def parsed(self) -> Any:
        """Return the request's message; call it once."""
        raw, self._raw = self._raw, b""
        return parse(raw, self.request_type)


def computing(flow: Flow, codec: Callable[[bytes], Codec[bytes]]) -> Any:
    """Create the gRPC handler of a unary method that runs a model."""

    async def answer(raw: bytes, context: Any) -> bytes:
        return await flow.run(codec(raw), _timeout_s(context), _correlation(context))

    return _handler(answer)


def reading(
    flow: Flow,
    api: str,
    request_type: Any,
    read: Callable[[Any], bytes | Awaitable[bytes]],
    *,
    is_observed: bool = True,
) -> Any:
    """Create the gRPC handler of a unary method that runs no model."""

    async def answer(raw: bytes, context: Any) -> bytes:
        recorded = flow.observed("GRPC", api, correlation=_correlation(context))
        with recorded if is_observed else _NOT_OBSERVED as observation:
            if len(raw) > AT_ONCE_BYTES:
                pool = pool_for(flow.pool, len(raw))
                loop = asyncio.get_running_loop()
                request = await loop.run_in_executor(pool, parse, raw, request_type)
            else:
                request = parse(raw, request_type)
            observation.model = getattr(request, "name", "") or _name_in(request)
            found = read(request)
            return await found if inspect.isawaitable(found) else found

    return _handler(answer)


def _handler(answer: Callable[[bytes, Any], Awaitable[bytes]]) -> Any:
    async def call(raw: bytes, context: Any) -> bytes:
        try:
            return await answer(raw, context)
        except StatusError as error:
            await refuse(context, error)
            return b""

    return grpc.unary_unary_rpc_method_handler(call)


def model_spec(request: Any) -> ModelSpec:
    """Return the version named in a request's ``model_spec``."""
    if not request.HasField("model_spec"):
        raise invalid_argument("Missing ModelSpec")
    return spec_from(request.model_spec)


def spec_from(proto: Any) -> ModelSpec:
    """Return the version named in a ModelSpec message."""
    if not proto.name:
        raise invalid_argument("ModelSpec has no name specified.")
    choice = proto.WhichOneof("version_choice")
    return ModelSpec(
        proto.name,
        proto.version.value if choice == "version" else None,
        proto.version_label if choice == "version_label" else None,
    )


def _name_in(request: Any) -> str:
    name: str = request.model_spec.name if hasattr(request, "model_spec") else ""
    return name


def _timeout_s(context: Any) -> float | None:
    remaining: float | None = context.time_remaining()
    return None if remaining is None or remaining > _FOREVER_S else remaining


def _correlation(context: Any) -> Correlation | None:
    return Correlation.of(context.invocation_metadata() or ())

"""OpenTelemetry spans of a request and its stages.

Spans are created when the request ends, from its recorded timestamps. A request that is not sampled
costs one call; without tracing it costs nothing. Needs the extra ``otel``.
"""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from timonel.errors import MissingExtraError
from timonel.serving.inference.context import Observation
from timonel.serving.status import Code
from timonel.serving.telemetry.counts import STAGES

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

_NANO = 1_000_000_000


class OpenTelemetryTracer:
    """Create spans of requests with an OpenTelemetry TracerProvider."""

    def __init__(self, provider: Any) -> None:
        from opentelemetry import trace  # noqa: PLC0415 - an extra
        from opentelemetry.trace.propagation import tracecontext  # noqa: PLC0415 - an extra

        self._tracer: Any = provider.get_tracer("timonel.serving")
        self._extract = tracecontext.TraceContextTextMapPropagator().extract
        self._within = trace.set_span_in_context
        self._server = trace.SpanKind.SERVER
        self._failed = trace.Status(trace.StatusCode.ERROR)
        self._nothing: Any = self._extract({})

    def trace(
        self, observation: Observation, stages: Sequence[float], ended: float, code: Code
    ) -> None:
        """Create the spans of a request, and of its stages, which took these seconds."""
        offset = time.time_ns() - int(time.monotonic() * _NANO)
        began = offset + int(observation.began * _NANO)
        span = self._tracer.start_span(
            f"{observation.model}/{observation.api or 'read'}",
            context=self._parent(observation),
            kind=self._server,
            attributes=_attributes(observation, code),
            start_time=began,
        )
        if span.is_recording():
            if code is not Code.OK:
                span.set_status(self._failed)
            self._stages(stages, span, began)
        span.end(offset + int(ended * _NANO))

    def _parent(self, observation: Observation) -> Any:
        parent = observation.correlation
        if parent is None or parent.traceparent is None:
            return self._nothing
        carrier = {"traceparent": parent.traceparent}
        if parent.tracestate:
            carrier["tracestate"] = parent.tracestate
        return self._extract(carrier)

    def _stages(self, stages: Sequence[float], span: Any, at: int) -> None:
        within = self._within(span)
        # In the usual order of stages. Waiting for a thread is part of the queue stage, but too
        # short for a span.
        for name, seconds in zip(STAGES, stages, strict=True):
            if seconds <= 0:
                continue
            start, at = at, at + int(seconds * _NANO)
            self._tracer.start_span(name, context=within, start_time=start).end(at)


def _attributes(observation: Observation, code: Code) -> dict[str, Any]:
    return {
        "timonel.model": observation.model,
        "timonel.version": -1 if observation.version is None else observation.version,
        "timonel.signature": observation.signature,
        "timonel.rows": observation.rows,
        "rpc.system": observation.entrypoint.lower(),
        "timonel.status": code.name,
    }


def make_tracer(exporter: SpanExporter | None = None) -> tuple[OpenTelemetryTracer, Any]:
    """Return a tracer, and its provider, whose ``shutdown()`` flushes it.

    OpenTelemetry's own variables set the endpoint, the sampling and the service name:
    ``OTEL_EXPORTER_OTLP_ENDPOINT``, ``OTEL_TRACES_SAMPLER``, ``OTEL_SERVICE_NAME``.
    """
    if not _installed("opentelemetry.sdk.trace") or (
        exporter is None and not _installed("opentelemetry.exporter.otlp.proto.http")
    ):
        raise MissingExtraError("Tracing", "otel")
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 - an extra
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415 - an extra
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415 - an extra

    if exporter is None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415
            OTLPSpanExporter,
        )

        exporter = OTLPSpanExporter()
    # A name given here would override the variable.
    name = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": "timonel"}
    provider = TracerProvider(resource=Resource.create(name))
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return OpenTelemetryTracer(provider), provider


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False

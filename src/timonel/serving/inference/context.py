"""Context and measurements of a request within the server. Pure: time is an argument."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from timonel.serving.settings.server import COMPARISON_HEADER
from timonel.serving.signature import Array, Signature
from timonel.serving.status import Code

_RELATED = ("traceparent", "tracestate", COMPARISON_HEADER)
"""Fields of a `Correlation`."""


@dataclass(frozen=True, slots=True)
class Correlation:
    """Headers that relate a request to others, unchanged.

    Args:
        traceparent: Trace context of the client, as W3C defines it.
        comparison: Secret ID that the copy of a request for another version has too; see
            `timonel.serving.telemetry.answers`.
    """

    traceparent: str | None = None
    tracestate: str | None = None
    comparison: str | None = None

    @classmethod
    def of(cls, headers: Iterable[tuple[str, str]]) -> Correlation | None:
        """Return these headers of a request; None if it has none of them."""
        sent = {name: value for name, value in headers if name in _RELATED}
        return cls(*map(sent.get, _RELATED)) if sent else None


@dataclass(eq=False, slots=True)
class Observation:
    """Measurements of one request. Used by one thread at a time.

    Args:
        entrypoint: ``REST`` or ``GRPC``.
        api: The API method, as TensorFlow Serving labels it: ``Predict`` over gRPC, ``predict``
            over REST, empty for methods without a name there.
        model: The model's name as the client gave it.
        began: The time when the request had arrived, in monotonic seconds.
        correlation: The client's headers that relate it to other requests.
        outputs: Outputs of each execution; None if the request is not compared.
        version: Version that was found; None if the request names no loaded version.
    """

    entrypoint: str
    api: str
    model: str
    began: float = 0.0
    correlation: Correlation | None = None
    outputs: list[Mapping[str, Array]] | None = None
    version: int | None = None
    signature: str = ""
    rows: int = 0
    computed: float | None = None
    run_s: float = 0.0
    queue_s: float = 0.0


@dataclass(frozen=True)
class LoggedRequest:
    """A successful execution of a signature.

    Args:
        api: The API method, in any case: ``Predict``, ``classify`` and so on.
        inputs: Arrays by input name, as the client sent them.
        output_filter: The requested outputs; empty for all.
    """

    model: str
    version: int
    signature: Signature
    api: str
    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]
    output_filter: Sequence[str] = ()


class Recorder(Protocol):
    """Recorder of a sample of requests. Thread-safe; never blocks."""

    @property
    def sampled(self) -> Container[str]:
        """Models with requests to record."""

    def wants(self, model: str) -> bool:
        """Return whether to record the current request of such a model."""

    def record(self, exchange: LoggedRequest) -> None:
        """Record a request; its arrays may change as soon as this returns."""


class Meter(Protocol):
    """Counts requests and their times; `timonel.serving.telemetry.monitor`. Thread-safe."""

    def begin(
        self, entrypoint: str, api: str, model: str = "", correlation: Correlation | None = None
    ) -> Observation:
        """Return the observation of a request that has just arrived."""

    def end(self, observation: Observation, code: Code = Code.OK) -> None:
        """Count an answered request."""

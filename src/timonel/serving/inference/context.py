"""Context and measurements of a request within the server. Pure: time is an argument.

A request's time is divided into four consecutive stages that add up to the total:

- decode: from the wire to arrays;
- queue: waiting for the model: for a thread, a place in a batch, and the transfer to and from its
  process;
- compute: inside the model; includes the queue if the model does not report its own time;
- encode: from arrays to the wire.

A failed request has only the stages it reached; its remaining time counts towards the last one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from timonel.serving.signature import Array, Signature
from timonel.serving.status import Code

STAGES = ("decode", "queue", "compute", "encode")


@dataclass(frozen=True, slots=True)
class Correlation:
    """Headers that relate a request to others, unchanged.

    Args:
        traceparent: Trace context of the client, as W3C defines it.
        tracestate: Further trace context.
        comparison: Secret ID that the copy of a request for another version has too; see
            `timonel.serving.telemetry.answers`.
    """

    traceparent: str | None = None
    tracestate: str | None = None
    comparison: str | None = None


@dataclass(eq=False, slots=True)
class Observation:
    """Measurements of one request. Used by one thread at a time.

    Args:
        entrypoint: ``REST`` or ``GRPC``.
        api: The API method, as TensorFlow Serving labels it: ``Predict`` or ``predict``.
        model: The model's name as the client gave it.
        began: The time when the request had arrived, in monotonic seconds.
        correlation: The client's headers that relate it to other requests.
        outputs: Outputs of each execution; None if the request is not compared.
        version: Version that was found; None if the request names no loaded version.
    """

    entrypoint: str
    api: str
    model: str
    began: float
    correlation: Correlation | None = None
    outputs: list[Mapping[str, Array]] | None = None
    version: int | None = None
    signature: str = ""
    rows: int = 0
    decoded: float | None = None
    computed: float | None = None
    run_s: float = 0.0
    queue_s: float = 0.0

    def ran(self, began: float, ended: float, compute_s: float | None = None) -> None:
        """Record one execution of the model; a request may need several.

        Args:
            began: The start time, in monotonic seconds.
            ended: The time when the outputs were available.
            compute_s: Seconds spent computing, if the model reports them.
        """
        if self.decoded is None:
            self.decoded = began
        if self.computed is not None:
            # Count overlapping executions once.
            began, ended = max(began, self.computed), max(ended, self.computed)
        self.computed = ended
        self.run_s += ended - began
        if compute_s is not None:
            self.queue_s += max(0.0, ended - began - compute_s)

    def stages(self, ended: float) -> tuple[float, float, float, float]:
        """Return the seconds of `STAGES`; their sum is ``ended - began``."""
        if self.computed is None:
            return ended - self.began, 0.0, 0.0, 0.0
        encode = ended - self.computed
        queue = min(self.queue_s, self.run_s)
        decode = self.computed - self.began - self.run_s
        return decode, queue, self.run_s - queue, encode


class RequestContext(NamedTuple):
    """Context of a request within the server.

    Args:
        deadline: Time after which the response is useless, in monotonic seconds.
        api: The API method, as TensorFlow Serving labels it: ``Predict`` or ``predict``.
        observation: The request's measurements; None if it is not measured.
    """

    deadline: float | None = None
    api: str = ""
    observation: Observation | None = None


NO_CONTEXT = RequestContext()


@dataclass(frozen=True)
class LoggedRequest:
    """A successful execution of a signature.

    Args:
        model: The model's name.
        version: The version that computed it.
        signature: The signature.
        api: The API method, in any case: ``Predict``, ``classify`` and so on.
        inputs: Arrays by input name, as the client sent them.
        outputs: Arrays by output name.
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

    def wants(self, model: str) -> bool:
        """Return whether to record this model's current request."""

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

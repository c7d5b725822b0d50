"""What is measured of one request, from its arrival to its answer. Pure: time is an argument.

A request's time is cut into four stages that follow each other and add up to the whole:

- decode: from the wire to arrays;
- queue: waiting for a thread, and for a place in a batch;
- compute: inside the model, with the way there and back where it has a process of its own;
- encode: from arrays to the wire.

A request that fails has the stages it came to; the rest of its time counts for the last of them.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

STAGES = ("decode", "queue", "compute", "encode")


@dataclass(frozen=True, slots=True)
class Computed:
    """What a model tells of one call of its `run`.

    Args:
        queue_s: Seconds it waited in a batch queue.
    """

    queue_s: float = 0.0


_NOTHING = Computed()
_reported = threading.local()


def report(computed: Computed) -> None:
    """Tell of the call of `run` that this thread is in. Called by models, before they return."""
    _reported.computed = computed


def take_report() -> Computed:
    """Return what the model told of the last call of `run` in this thread, once."""
    computed: Computed = getattr(_reported, "computed", _NOTHING)
    _reported.computed = _NOTHING
    return computed


@dataclass(frozen=True, slots=True)
class TraceParent:
    """The trace a client's request belongs to: the W3C headers as they came."""

    traceparent: str
    tracestate: str | None = None


class Observation:
    """The marks one request leaves. Owned by it, and used by one thread at a time.

    Args:
        entrypoint: ``REST`` or ``GRPC``.
        api: What was asked for, as TensorFlow Serving labels it: ``Predict`` or ``predict``.
        model: The model's name as the client gave it.
        began: When the request had arrived, in monotonic seconds.
        parent: The trace it belongs to.
    """

    __slots__ = (
        "api",
        "began",
        "computed",
        "decoded",
        "entrypoint",
        "model",
        "parent",
        "queue_s",
        "rows",
        "run_s",
        "signature",
        "started",
        "version",
    )

    def __init__(
        self,
        entrypoint: str,
        api: str,
        model: str,
        began: float,
        parent: TraceParent | None = None,
    ) -> None:
        self.entrypoint = entrypoint
        self.api = api
        self.model = model
        self.began = began
        self.parent = parent
        self.version: int | None = None
        """The version that was found; none for a request about no loaded one."""
        self.signature = ""
        self.rows = 0
        self.started = began
        self.decoded: float | None = None
        self.computed: float | None = None
        self.run_s = 0.0
        self.queue_s = 0.0

    def ran(self, began: float, ended: float, computed: Computed) -> None:
        """Take in one call of the model's `run`; a request may need several."""
        if self.decoded is None:
            self.decoded = began
        self.computed = ended
        self.run_s += ended - began
        self.queue_s += computed.queue_s

    def stages(self, ended: float) -> tuple[float, float, float, float]:
        """Return the seconds of each of `STAGES`; their sum is ``ended - began``."""
        waited = self.started - self.began
        if self.computed is None:
            return ended - self.started, waited, 0.0, 0.0
        encode = ended - self.computed
        queue = min(self.queue_s, self.run_s)
        decode = self.computed - self.started - self.run_s
        return decode, waited + queue, self.run_s - queue, encode

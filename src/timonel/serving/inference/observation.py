"""What is measured of one request, from its arrival to its answer. Pure: time is an argument.

A request's time is cut into four stages that follow each other and add up to the whole:

- decode: from the wire to arrays;
- queue: waiting for the model: for a thread, for a place in a batch, for its process and back;
- compute: inside the model; with its queue, where it does not tell how long it took itself;
- encode: from arrays to the wire.

A request that fails has the stages it came to; the rest of its time counts for the last of them.
"""

from __future__ import annotations

from dataclasses import dataclass

STAGES = ("decode", "queue", "compute", "encode")


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

    def ran(self, began: float, ended: float, compute_s: float | None = None) -> None:
        """Take in one run of the model; a request may need several.

        Args:
            began: When it was asked, in monotonic seconds.
            ended: When its answer was there.
            compute_s: How long it took to compute it, if it tells.
        """
        if self.decoded is None:
            self.decoded = began
        if self.computed is not None:
            # Those that are under way together count once.
            began, ended = max(began, self.computed), max(ended, self.computed)
        self.computed = ended
        self.run_s += ended - began
        if compute_s is not None:
            self.queue_s += max(0.0, ended - began - compute_s)

    def stages(self, ended: float) -> tuple[float, float, float, float]:
        """Return the seconds of each of `STAGES`; their sum is ``ended - began``."""
        waited = self.started - self.began
        if self.computed is None:
            return ended - self.started, waited, 0.0, 0.0
        encode = ended - self.computed
        queue = min(self.queue_s, self.run_s)
        decode = self.computed - self.started - self.run_s
        return decode, waited + queue, self.run_s - queue, encode

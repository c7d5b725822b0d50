"""What travels with a request through the server."""

from __future__ import annotations

from dataclasses import dataclass

from timonel.serving.inference.observation import Observation


@dataclass(frozen=True, slots=True)
class RequestContext:
    """What travels with a request through the server, whatever it asks for.

    Args:
        deadline: When its answer is of no use any more, in monotonic seconds.
        principal: Who sent it; none where nobody is asked.
        entrypoint: ``REST`` or ``GRPC``; empty for a request of the server's own.
        api: What was asked for, as TensorFlow Serving labels it: ``Predict`` or ``predict``.
        observation: What is measured of it; none if nobody wants to know.
    """

    deadline: float | None = None
    principal: str | None = None
    entrypoint: str = ""
    api: str = ""
    observation: Observation | None = None


NO_CONTEXT = RequestContext()

"""Context of a request within the server."""

from __future__ import annotations

from dataclasses import dataclass

from timonel.serving.inference.observation import Observation


@dataclass(frozen=True, slots=True)
class RequestContext:
    """Context of a request within the server.

    Args:
        deadline: Time after which the response is useless, in monotonic seconds.
        principal: The authenticated client; None without authentication.
        entrypoint: ``REST`` or ``GRPC``; empty for the server's internal requests.
        api: The API method, as TensorFlow Serving labels it: ``Predict`` or ``predict``.
        observation: The request's measurements; None if it is not measured.
    """

    deadline: float | None = None
    principal: str | None = None
    entrypoint: str = ""
    api: str = ""
    observation: Observation | None = None


NO_CONTEXT = RequestContext()

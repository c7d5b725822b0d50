"""What can be set of the REST server."""

from __future__ import annotations

from dataclasses import dataclass

from timonel.serving.dialect import TIMONEL, Dialect


@dataclass(frozen=True)
class RestOptions:
    """The REST side of a server.

    Args:
        dialect: How it answers.
        cors: Whether pages of other origins may use it from a browser.
        timeout_s: Seconds after which a request, once it has arrived, is answered with
            ``DEADLINE_EXCEEDED``; none for no such limit.
        check_method_names: Whether a signature must be declared for the method it is used with.
    """

    dialect: Dialect = TIMONEL
    cors: bool = False
    timeout_s: float | None = None
    check_method_names: bool = False

"""End a gRPC call with a status, without raising."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc

from timonel.serving.status import Code

_CODES = {code.value[0]: code for code in grpc.StatusCode}


def refuse(
    context: Any, code: Code, message: str, metadata: Sequence[tuple[str, str]] = ()
) -> None:
    """Set the error status of a call.

    The handler must then return at once, with any response. ``context.abort`` would raise an error
    that the context keeps. Its traceback refers to the handler's frames, so to the request and the
    context: a cycle that keeps the whole request in memory until the next full garbage collection.

    Args:
        context: gRPC's context of the call.
        code: The status; not ``OK``, as the response would be sent then.
        message: The text for the client.
        metadata: Trailing metadata.
    """
    context.set_code(_CODES[code.value])
    context.set_details(message)
    if metadata:
        context.set_trailing_metadata(tuple(metadata))

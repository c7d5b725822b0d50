"""Ending a gRPC call with a status."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NoReturn

import grpc

from timonel.serving.status import Code

_CODES = {code.value[0]: code for code in grpc.StatusCode}


async def abort(
    context: Any, code: Code, message: str, metadata: Sequence[tuple[str, str]] = ()
) -> NoReturn:
    """End a call.

    Args:
        context: gRPC's context of the call.
        code: Its status.
        message: What its client is told.
        metadata: The same, for programs.
    """
    try:
        await context.abort(_CODES[code.value], message, tuple(metadata))
    except grpc.aio.InternalError:
        # Its client went away in this moment. gRPC would log that as a defect of ours.
        raise asyncio.CancelledError from None
    raise AssertionError("abort raises")

from __future__ import annotations

import asyncio

import grpc
import pytest

from timonel.serving.aborting import abort
from timonel.serving.status import Code


class Context:
    """A call whose end fails as gRPC's does, or as it does where nobody is there any more."""

    def __init__(self, error):
        self.error = error
        self.told = None

    async def abort(self, code, message, metadata):
        self.told = (code, message, metadata)
        raise self.error


def test_a_call_ends_with_what_it_is_told():
    context = Context(grpc.aio.AbortError())
    with pytest.raises(grpc.aio.AbortError):
        asyncio.run(abort(context, Code.NOT_FOUND, "no m", [("a", "b")]))
    assert context.told == (grpc.StatusCode.NOT_FOUND, "no m", (("a", "b"),))


def test_nobody_is_told_when_nobody_is_there():
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(abort(Context(grpc.aio.InternalError()), Code.DEADLINE_EXCEEDED, "late"))

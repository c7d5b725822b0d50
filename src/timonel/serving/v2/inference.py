"""What the REST and gRPC forms of an inference have in common: run a request's signature."""

from __future__ import annotations

import dataclasses
import time

from timonel.serving.awaiting import finished
from timonel.serving.core import Call, Outputs, RequestContext, Run
from timonel.serving.status import Code, StatusError
from timonel.serving.v2.request import InferRequest, InferResult
from timonel.serving.v2.tensors import check_types


def in_time(context: RequestContext, request: InferRequest) -> RequestContext:
    """Return a context whose deadline is not after the request's own."""
    timeout_s = request.parameters.timeout_s
    if timeout_s is None:
        return context
    deadline = time.monotonic() + timeout_s
    if context.deadline is not None:
        deadline = min(deadline, context.deadline)
    return dataclasses.replace(context, deadline=deadline)


def start(call: Call, request: InferRequest) -> Run:
    """Begin to run what a request asks for.

    Raises:
        StatusError: There is no such signature, or the request does not fit it.
    """
    signature = call.signature(request.parameters.signature_name)
    check_types(signature, request.inputs)
    return call.start(signature, request.inputs, tuple(request.outputs))


async def outputs_in_time(run: Run, context: RequestContext) -> Outputs:
    """Wait for a model's answer, until the request's deadline.

    Raises:
        StatusError: The model refused or failed, or time was over.
    """
    left_s = None if context.deadline is None else max(0.0, context.deadline - time.monotonic())
    if not await finished(run.future, left_s):
        run.future.cancel()
        raise StatusError(Code.DEADLINE_EXCEEDED, "Deadline Exceeded")
    return run.result()


def result_of(call: Call, outputs: Outputs) -> InferResult:
    """Return what a version answered."""
    return InferResult(call.name, call.version, outputs)

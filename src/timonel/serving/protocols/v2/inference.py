"""Run an inference and describe the server, for REST and gRPC."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from typing import Any, Final

from timonel._version import __version__
from timonel.serving.futures import finished
from timonel.serving.inference import Call, DataPlane, Execution, Outputs, RequestContext
from timonel.serving.manager.catalogue import ModelSpec
from timonel.serving.manager.plan import State
from timonel.serving.protocols.v2.request import InferRequest
from timonel.serving.protocols.v2.tensors import check_types, datatype_named
from timonel.serving.signature import DEFAULT_SIGNATURE, TensorSpec
from timonel.serving.status import Code, StatusError

_EXTENSIONS: Final = ("binary_tensor_data",)


def in_time(context: RequestContext, request: InferRequest) -> RequestContext:
    """Limit a context's deadline by the request's own timeout."""
    timeout_s = request.parameters.timeout_s
    if timeout_s is None:
        return context
    deadline = time.monotonic() + timeout_s
    if context.deadline is not None:
        deadline = min(deadline, context.deadline)
    return dataclasses.replace(context, deadline=deadline)


def start(call: Call, request: InferRequest) -> Execution:
    """Start the signature of a request.

    Raises:
        StatusError: The signature does not exist, or the request does not match it.
    """
    signature = call.signature(request.parameters.signature_name)
    check_types(signature, request.inputs)
    return call.start(signature, request.inputs, tuple(request.outputs))


async def outputs_in_time(run: Execution, context: RequestContext) -> Outputs:
    """Wait for a model's outputs, until the request's deadline.

    Raises:
        StatusError: The model rejected the request or failed, or the deadline has passed.
    """
    left_s = None if context.deadline is None else max(0.0, context.deadline - time.monotonic())
    if not await finished(run.future, left_s):
        run.future.cancel()
        raise StatusError(Code.DEADLINE_EXCEEDED, "Deadline Exceeded")
    return run.result()


def server_view() -> dict[str, Any]:
    """Return the metadata of the server."""
    return {"name": "timonel", "version": __version__, "extensions": list(_EXTENSIONS)}


def model_view(plane: DataPlane, spec: ModelSpec) -> dict[str, Any]:
    """Return the metadata of a version and its default signature.

    Raises:
        StatusError: The version is not loaded, or has no default signature.
    """
    metadata = plane.metadata(spec)
    signature = metadata.signatures.get(DEFAULT_SIGNATURE)
    if signature is None:
        raise StatusError(
            Code.FAILED_PRECONDITION,
            f"expected model {metadata.name} to have the signature {DEFAULT_SIGNATURE}, it has "
            f"{', '.join(sorted(metadata.signatures)) or 'none'}; requests name one by the "
            "parameter signature_name",
        )
    serving = [s.number for s in plane.status(metadata.name) if s.state is State.AVAILABLE]
    return {
        "name": metadata.name,
        "versions": [str(number) for number in sorted(serving)],
        "platform": metadata.platform,
        "inputs": _tensors(signature.inputs),
        "outputs": _tensors(signature.outputs),
    }


def is_ready(plane: DataPlane, spec: ModelSpec) -> bool:
    """Whether a version can answer now.

    Raises:
        StatusError: The model, version or label does not exist.
    """
    try:
        version = plane.metadata(spec).version
    except StatusError as error:
        known = plane.models().get(spec.name)
        if error.code is not Code.NOT_FOUND or known is None:
            raise
        if spec.version is not None and all(s.number != spec.version for s in known):
            raise
        return False
    return plane.outage(spec.name, version) is None


def _tensors(specs: Mapping[str, TensorSpec]) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "datatype": datatype_named(spec.dtype),
            # The protocol cannot express an unknown rank.
            "shape": [-1] if spec.shape is None else list(spec.shape),
        }
        for name, spec in specs.items()
    ]

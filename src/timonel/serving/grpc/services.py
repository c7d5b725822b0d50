"""The gRPC skin: PredictionService and ModelService over the data plane."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeVar

import grpc
from tensorflow_serving.apis import (
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)

from timonel.serving import protos
from timonel.serving.core import DataPlane
from timonel.serving.grpc.tensors import from_proto, to_proto
from timonel.serving.runtimes.base import DEFAULT_SIGNATURE
from timonel.serving.servables import ModelSpec
from timonel.serving.status import Code, StatusError, invalid_argument

_MESSAGE_LIMIT = 1024
_SUFFIX = "...TRUNCATED"
_CODES = {code.value[0]: code for code in grpc.StatusCode}

T = TypeVar("T")


class PredictionService(prediction_service_pb2_grpc.PredictionServiceServicer):  # type: ignore[misc]  # no types
    """Predict and GetModelMetadata; the other calls answer UNIMPLEMENTED.

    Args:
        plane: Where requests are computed.
        pool: Where the work is done, off the event loop.
    """

    def __init__(self, plane: DataPlane, pool: Executor) -> None:
        self._plane = plane
        self._pool = pool

    async def Predict(self, request: Any, context: Any) -> Any:  # noqa: N802 - the proto's name
        """Run a signature."""
        return await _answer(self._pool, context, lambda: self._predict(request))

    async def GetModelMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Return the signatures of a loaded version."""
        return await _answer(self._pool, context, lambda: self._metadata(request))

    def _predict(self, request: Any) -> Any:
        signature_name = request.model_spec.signature_name or DEFAULT_SIGNATURE
        with self._plane.call(_spec(request)) as call:
            signature = call.signature(signature_name)
            inputs = {alias: from_proto(alias, proto) for alias, proto in request.inputs.items()}
            outputs = call.predict(signature, inputs, request.output_filter)
            version = call.version
        response = predict_pb2.PredictResponse()
        response.model_spec.name = request.model_spec.name
        response.model_spec.version.value = version
        response.model_spec.signature_name = signature_name
        for alias, array in outputs.items():
            response.outputs[alias].CopyFrom(to_proto(array))
        return response

    def _metadata(self, request: Any) -> Any:
        spec = _spec(request)
        if not request.metadata_field:
            raise invalid_argument(
                "GetModelMetadataRequest must specify at least one metadata_field"
            )
        for field in request.metadata_field:
            if field != "signature_def":
                raise invalid_argument(f"Metadata field {field} is not supported")
        return protos.metadata_response(self._plane.metadata(spec))


class ModelService(model_service_pb2_grpc.ModelServiceServicer):  # type: ignore[misc]  # no types
    """GetModelStatus; HandleReloadConfigRequest answers UNIMPLEMENTED.

    Args:
        plane: What knows the versions.
        pool: Where the work is done, off the event loop.
    """

    def __init__(self, plane: DataPlane, pool: Executor) -> None:
        self._plane = plane
        self._pool = pool

    async def GetModelStatus(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Return the status of a model's versions."""
        return await _answer(self._pool, context, lambda: self._status(request))

    def _status(self, request: Any) -> Any:
        if not request.HasField("model_spec"):
            raise invalid_argument("Missing ModelSpec")
        spec = request.model_spec
        version = spec.version.value if spec.HasField("version") else None
        return protos.status_response(self._plane.status(spec.name, version))


async def _answer(pool: Executor, context: Any, work: Callable[[], T]) -> T:
    try:
        return await asyncio.get_running_loop().run_in_executor(pool, work)
    except StatusError as error:
        code, message = error.code, error.message
    except Exception as error:  # noqa: BLE001 - becomes the call's status, with its text
        code, message = Code.INTERNAL, f"{type(error).__name__}: {error}"
    await context.abort(_CODES[code.value], _cut(message))
    raise AssertionError("abort raises")


def _spec(request: Any) -> ModelSpec:
    if not request.HasField("model_spec"):
        raise invalid_argument("Missing ModelSpec")
    spec = request.model_spec
    if not spec.name:
        raise invalid_argument("ModelSpec has no name specified.")
    choice = spec.WhichOneof("version_choice")
    return ModelSpec(
        spec.name,
        spec.version.value if choice == "version" else None,
        spec.version_label if choice == "version_label" else None,
    )


def _cut(message: str) -> str:
    if len(message) <= _MESSAGE_LIMIT:
        return message
    return message[: _MESSAGE_LIMIT - len(_SUFFIX)] + _SUFFIX

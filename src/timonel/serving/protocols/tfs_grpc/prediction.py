"""PredictionService: decode requests, run models, encode responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Any, TypeVar

import grpc

from timonel.serving.futures import by_size, finished
from timonel.serving.inference import (
    Call,
    DataPlane,
    Execution,
    Outputs,
    RequestContext,
    classification,
    conversion,
)
from timonel.serving.inference.classification import CLASSIFY, REGRESS, Classes, Question, Task
from timonel.serving.inference.signature_check import check_inputs
from timonel.serving.protocols.tfs_grpc.calls import Answer, handler, model_spec, spec_from
from timonel.serving.protocols.tfs_grpc.options import GrpcOptions
from timonel.serving.protos.messages import (
    classification_pb2,
    get_model_metadata_pb2,
    inference_pb2,
    model_pb2,
    predict_pb2,
    regression_pb2,
)
from timonel.serving.protos.tensors import effort, from_proto
from timonel.serving.signature import DEFAULT_SIGNATURE, Array, Signature, bytes_of
from timonel.serving.status import Code, StatusError, invalid_argument
from timonel.serving.telemetry.monitor import Monitor

NAME = "tensorflow.serving.PredictionService"
_METHODS = ("tensorflow/serving/predict", CLASSIFY, REGRESS)

R = TypeVar("R")


class PredictionService:
    """The methods of PredictionService; all raise `StatusError`.

    Args:
        plane: Data plane that runs the models.
        pool: Executor for decoding and encoding large messages.
        options: Options for responses.
        monitor: Records each request.
    """

    def __init__(
        self,
        plane: DataPlane,
        pool: Executor,
        options: GrpcOptions,
        monitor: Monitor | None = None,
    ) -> None:
        self._plane = plane
        self._pool = pool
        self._options = options
        self._monitor = monitor

    def handlers(self) -> Any:
        """Return the gRPC handler of the service."""
        methods: dict[str, tuple[Answer, Any]] = {
            "Predict": (self.predict, predict_pb2.PredictRequest),
            "Classify": (self.classify, classification_pb2.ClassificationRequest),
            "Regress": (self.regress, regression_pb2.RegressionRequest),
            "MultiInference": (self.infer, inference_pb2.MultiInferenceRequest),
            "GetModelMetadata": (self.metadata, get_model_metadata_pb2.GetModelMetadataRequest),
        }
        return grpc.method_handlers_generic_handler(
            NAME,
            {
                name: handler(answer, name, request_type, self._pool, self._monitor)
                for name, (answer, request_type) in methods.items()
            },
        )

    async def predict(self, request: Any, context: RequestContext) -> bytes:
        """Run a signature."""
        name = request.model_spec.signature_name or DEFAULT_SIGNATURE
        with self._plane.call(model_spec(request), context) as call:
            signature = call.signature(name)
            self._check_method(signature)
            size = sum(map(effort, request.inputs.values()))
            inputs = await by_size(self._pool, size, _arrays, signature, request.inputs)
            outputs = await _answered(call.start(signature, inputs, request.output_filter))
            version = call.version
        write = partial(conversion.predict_response, as_content=self._options.tensor_content)
        size = sum(map(bytes_of, outputs.values()))
        spec = conversion.model_spec(request.model_spec.name, version, name)
        return await by_size(self._pool, size, write, spec, outputs)

    async def classify(self, request: Any, context: RequestContext) -> bytes:
        """Run a signature that returns classes and scores."""
        response = classification_pb2.ClassificationResponse()
        examples = await self._examples(request.input)
        with self._plane.call(model_spec(request), context) as call:
            question = classification.classify(
                call,
                request.model_spec.signature_name,
                *examples,
                check_method=self._options.check_method_names,
            )
            (result,) = await _all_asked(call, [question])
            response.model_spec.CopyFrom(_resolved(request.model_spec, call.version))
        conversion.fill_classes(response.result, result)
        return _serialized(response)

    async def regress(self, request: Any, context: RequestContext) -> bytes:
        """Run a signature that returns one number per example."""
        response = regression_pb2.RegressionResponse()
        examples = await self._examples(request.input)
        with self._plane.call(model_spec(request), context) as call:
            question = classification.regress(
                call,
                request.model_spec.signature_name,
                *examples,
                check_method=self._options.check_method_names,
            )
            (values,) = await _all_asked(call, [question])
            response.model_spec.CopyFrom(_resolved(request.model_spec, call.version))
        conversion.fill_regressions(response.result, values)
        return _serialized(response)

    async def infer(self, request: Any, context: RequestContext) -> bytes:
        """Run several signatures of the first task's version on the same examples."""
        tasks = [
            Task(task.model_spec.name, task.model_spec.signature_name, task.method_name)
            for task in request.tasks
        ]
        first = request.tasks[0].model_spec if tasks else model_pb2.ModelSpec()
        response = inference_pb2.MultiInferenceResponse()
        examples = await self._examples(request.input)
        with self._plane.call(spec_from(first), context) as call:
            questions = classification.infer(
                call, tasks, *examples, check_method=self._options.check_method_names
            )
            results = await _all_asked(call, questions)
            version = call.version
        for task, result in zip(request.tasks, results, strict=True):
            entry = response.results.add(model_spec=_resolved(task.model_spec, version))
            if isinstance(result, Classes):
                conversion.fill_classes(entry.classification_result, result)
            else:
                conversion.fill_regressions(entry.regression_result, result)
        return _serialized(response)

    async def metadata(
        self,
        request: Any,
        context: RequestContext,  # noqa: ARG002 - a method
    ) -> bytes:
        """Return the signatures of a loaded version."""
        spec = model_spec(request)
        if not request.metadata_field:
            raise invalid_argument(
                "GetModelMetadataRequest must specify at least one metadata_field"
            )
        for field in request.metadata_field:
            if field != "signature_def":
                raise invalid_argument(f"Metadata field {field} is not supported")
        return _serialized(conversion.metadata_response(self._plane.metadata(spec)))

    async def _examples(self, given: Any) -> tuple[list[bytes], bytes]:
        return await by_size(self._pool, given.ByteSize(), conversion.examples_from, given)

    def _check_method(self, signature: Signature) -> None:
        if self._options.check_method_names and signature.method_name not in _METHODS:
            raise StatusError(
                Code.INTERNAL,
                "Expected prediction signature method_name to be one of "
                f"{{{', '.join(_METHODS)}}}. Was: {signature.method_name}",
            )


async def _all_asked(call: Call, questions: Sequence[Question[R]]) -> list[R]:
    """Return the results of all questions; the model may compute them concurrently."""
    runs: list[Execution] = []
    try:
        runs.extend(call.start(each.signature, each.inputs, each.outputs) for each in questions)
        answers = [await _answered(run) for run in runs]
    finally:
        # No effect on finished runs.
        for run in runs:
            run.future.cancel()
    return [question.read(answer) for question, answer in zip(questions, answers, strict=True)]


async def _answered(run: Execution) -> Outputs:
    """Wait for a model's outputs. Cancelling the wait cancels the run.

    Raises:
        StatusError: The model rejected the request or failed.
    """
    await finished(run.future)
    return run.result()


def _arrays(signature: Signature, given: Mapping[str, Any]) -> dict[str, Array]:
    try:
        return {alias: from_proto(alias, proto) for alias, proto in given.items()}
    except StatusError:
        # Report missing inputs before corrupt ones.
        check_inputs(signature, given.keys())
        raise


def _resolved(asked: Any, version: int) -> Any:
    return conversion.model_spec(asked.name, version, asked.signature_name or DEFAULT_SIGNATURE)


def _serialized(message: Any) -> bytes:
    encoded: bytes = message.SerializeToString()
    return encoded

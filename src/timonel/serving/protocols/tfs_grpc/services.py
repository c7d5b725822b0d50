"""TensorFlow Serving's gRPC services: PredictionService and ModelService."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Any, TypeVar

import grpc

from timonel.serving.futures import by_size, finished, in_pool
from timonel.serving.inference import (
    Call,
    DataPlane,
    Execution,
    Outputs,
    RequestContext,
    classification,
    conversion,
)
from timonel.serving.inference.classification import Classes, PreparedRun
from timonel.serving.inference.signature_check import check_inputs, check_method
from timonel.serving.manager.model_config import next_models
from timonel.serving.protocols.tfs_grpc.calls import Method, handler, model_spec, spec_from
from timonel.serving.protos.messages import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    inference_pb2,
    model_management_pb2,
    model_pb2,
    predict_pb2,
    regression_pb2,
)
from timonel.serving.protos.tensors import effort, from_proto
from timonel.serving.settings import GrpcSettings
from timonel.serving.signature import DEFAULT_SIGNATURE, Array, Signature, bytes_of
from timonel.serving.status import Code, StatusError, invalid_argument
from timonel.serving.telemetry.metrics import tensorflow_serving_families
from timonel.serving.telemetry.monitor import Monitor

PREDICTION_SERVICE = "tensorflow.serving.PredictionService"

R = TypeVar("R")


class PredictionService:
    """The methods of PredictionService; all raise `StatusError`.

    Args:
        plane: Data plane that runs the models.
        pool: Executor for decoding and encoding large messages.
        settings: How to answer, and whether to check method names.
        monitor: Records each request.
    """

    def __init__(
        self,
        plane: DataPlane,
        pool: Executor,
        settings: GrpcSettings,
        monitor: Monitor | None = None,
    ) -> None:
        self._plane = plane
        self._pool = pool
        self._settings = settings
        self._monitor = monitor

    def handlers(self) -> Any:
        """Return the gRPC handler of the service."""
        methods: dict[str, tuple[Method, Any]] = {
            "Predict": (self.predict, predict_pb2.PredictRequest),
            "Classify": (self.classify, classification_pb2.ClassificationRequest),
            "Regress": (self.regress, regression_pb2.RegressionRequest),
            "MultiInference": (self.infer, inference_pb2.MultiInferenceRequest),
            "GetModelMetadata": (self.metadata, get_model_metadata_pb2.GetModelMetadataRequest),
        }
        return grpc.method_handlers_generic_handler(
            PREDICTION_SERVICE,
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
            if self._settings.check_method_names:
                check_method(signature)
            size = sum(map(effort, request.inputs.values()))
            inputs = await by_size(self._pool, size, _arrays, signature, request.inputs)
            outputs = await _outputs_of(call.start(signature, inputs, request.output_filter))
            version = call.version
        write = partial(conversion.predict_response, as_content=self._settings.tensor_content)
        size = sum(map(bytes_of, outputs.values()))
        spec = conversion.model_spec(request.model_spec.name, version, name)
        return await by_size(self._pool, size, write, spec, outputs)

    async def classify(self, request: Any, context: RequestContext) -> bytes:
        """Run a signature that returns classes and scores."""
        response = classification_pb2.ClassificationResponse()
        classes = await self._run_examples(classification.classify, request, context, response)
        conversion.fill_classes(response.result, classes)
        return _serialized(response)

    async def regress(self, request: Any, context: RequestContext) -> bytes:
        """Run a signature that returns one number per example."""
        response = regression_pb2.RegressionResponse()
        values = await self._run_examples(classification.regress, request, context, response)
        conversion.fill_regressions(response.result, values)
        return _serialized(response)

    async def _run_examples(
        self,
        prepare: Callable[..., PreparedRun[R]],
        request: Any,
        context: RequestContext,
        response: Any,
    ) -> R:
        """Run a signature on examples; write the version into the response."""
        examples = await self._examples(request.input)
        checks = self._settings.check_method_names
        with self._plane.call(model_spec(request), context) as call:
            name = request.model_spec.signature_name
            prepared = prepare(call, name, *examples, check_method=checks)
            (result,) = await _all_results(call, [prepared])
            response.model_spec.CopyFrom(_resolved(request.model_spec, call.version))
        return result

    async def infer(self, request: Any, context: RequestContext) -> bytes:
        """Run several signatures of the first task's version on the same examples."""
        tasks = conversion.tasks_from(request.tasks)
        first = request.tasks[0].model_spec if tasks else model_pb2.ModelSpec()
        response = inference_pb2.MultiInferenceResponse()
        examples = await self._examples(request.input)
        with self._plane.call(spec_from(first), context) as call:
            all_prepared = classification.infer(
                call, tasks, *examples, check_method=self._settings.check_method_names
            )
            results = await _all_results(call, all_prepared)
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

    async def _examples(self, proto: Any) -> tuple[list[bytes], bytes]:
        return await by_size(self._pool, proto.ByteSize(), conversion.examples_from, proto)


async def _all_results(call: Call, all_prepared: Sequence[PreparedRun[R]]) -> list[R]:
    """Return the results of all prepared runs; the model may compute them concurrently."""
    runs: list[Execution] = []
    try:
        runs.extend(call.start(each.signature, each.inputs, each.outputs) for each in all_prepared)
        answers = [await _outputs_of(run) for run in runs]
    finally:
        # No effect on finished runs.
        for run in runs:
            run.future.cancel()
    return [prepared.read(answer) for prepared, answer in zip(all_prepared, answers, strict=True)]


async def _outputs_of(run: Execution) -> Outputs:
    """Wait for a model's outputs. Cancelling the wait cancels the run.

    Raises:
        StatusError: The model rejected the request or failed.
    """
    await finished(run.future)
    return run.result()


def _arrays(signature: Signature, tensors: Mapping[str, Any]) -> dict[str, Array]:
    try:
        return {alias: from_proto(alias, proto) for alias, proto in tensors.items()}
    except StatusError:
        # Report missing inputs before corrupt ones.
        check_inputs(signature, tensors.keys())
        raise


def _resolved(spec: Any, version: int) -> Any:
    return conversion.model_spec(spec.name, version, spec.signature_name or DEFAULT_SIGNATURE)


def _serialized(message: Any) -> bytes:
    encoded: bytes = message.SerializeToString()
    return encoded


MODEL_SERVICE = "tensorflow.serving.ModelService"


class ModelService:
    """The methods of ModelService; all raise `StatusError`.

    Args:
        plane: Data plane with the model versions.
        pool: Executor for parsing large requests and adding up metrics.
        monitor: Records each request and has the metrics.
        may_reload: Whether clients may replace the list of models.
    """

    def __init__(
        self,
        plane: DataPlane,
        pool: Executor,
        monitor: Monitor | None = None,
        *,
        may_reload: bool = True,
    ) -> None:
        self._may_reload = may_reload
        self._plane = plane
        self._pool = pool
        self._monitor = monitor

    def handlers(self) -> Any:
        """Return the gRPC handler of the service."""
        methods: dict[str, tuple[Method, Any]] = {
            "GetModelStatus": (self.status, get_model_status_pb2.GetModelStatusRequest),
            "HandleReloadConfigRequest": (self.reload, model_management_pb2.ReloadConfigRequest),
        }
        return grpc.method_handlers_generic_handler(
            MODEL_SERVICE,
            {
                name: handler(answer, name, request_type, self._pool, self._monitor)
                for name, (answer, request_type) in methods.items()
            },
        )

    async def status(
        self,
        request: Any,
        context: RequestContext,  # noqa: ARG002 - a method
    ) -> bytes:
        """Return the status of a model's versions; labels are ignored."""
        if not request.HasField("model_spec"):
            raise invalid_argument("Missing ModelSpec")
        spec = request.model_spec
        version = spec.version.value if spec.HasField("version") else None
        encoded: bytes = conversion.status_response(
            self._plane.status(spec.name, version)
        ).SerializeToString()
        return encoded

    async def reload(
        self,
        request: Any,
        context: RequestContext,  # noqa: ARG002 - a method
    ) -> bytes:
        """Replace the list of models, and return the increase of metrics meanwhile.

        A failure becomes the call's status. TensorFlow Serving also writes it into a response,
        which gRPC does not send.
        """
        if not self._may_reload:
            raise StatusError(
                Code.PERMISSION_DENIED,
                "Clients cannot replace the models of this server. "
                "Start it with --allow-reload, or with keys.",
            )
        if request.config.WhichOneof("config") != "model_config_list":
            raise invalid_argument(
                "ServerModelConfig type not supported by HandleReloadConfigRequest. "
                "Only ModelConfigList is currently supported"
            )
        names = frozenset(request.metric_names)
        before = await in_pool(self._pool, self._counters, names)
        await asyncio.wrap_future(self._plane.reconfigure(next_models(request.config)))
        return await in_pool(self._pool, self._reloaded, names, before)

    def _reloaded(self, names: frozenset[str], before: dict[str, int]) -> bytes:
        response = model_management_pb2.ReloadConfigResponse()
        response.status.SetInParent()
        for name, value in sorted(self._counters(names).items()):
            response.metric.add(name=name, int64_value_increase=value - before.get(name, 0))
        encoded: bytes = response.SerializeToString()
        return encoded

    def _counters(self, names: frozenset[str]) -> dict[str, int]:
        """Return the first sample of each named counter, by name."""
        if self._monitor is None or not names:
            return {}
        firsts = [
            family.samples[0]
            for family in tensorflow_serving_families(self._monitor.counts())
            if family.samples and family.type != "histogram"
        ]
        counted = {first.name.replace(":", "/"): int(first.value) for first in firsts}
        return {name: value for name, value in counted.items() if name in names}

"""TensorFlow Serving's gRPC services: PredictionService and ModelService."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import grpc

from timonel.serving.inference import classification, conversion
from timonel.serving.inference.classification import PreparedRun
from timonel.serving.inference.flow import Call, Flow, Outputs, SignatureRun
from timonel.serving.inference.signature_check import check_inputs, check_method
from timonel.serving.manager.catalogue import Catalogue, ModelSpec
from timonel.serving.manager.manager import ModelManager
from timonel.serving.manager.model_config import reloaded_models
from timonel.serving.protocols.tfs_grpc.calls import (
    MessageCodec,
    computing,
    model_spec,
    reading,
    spec_from,
)
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
from timonel.serving.protos.tensors import from_proto
from timonel.serving.settings.server import GrpcSettings
from timonel.serving.signature import CLASSIFY, DEFAULT_SIGNATURE, REGRESS, Array, Signature
from timonel.serving.status import Code, StatusError, invalid_argument
from timonel.serving.telemetry.metrics import tensorflow_serving_families
from timonel.serving.telemetry.monitor import Monitor

PREDICTION_SERVICE = "tensorflow.serving.PredictionService"
MODEL_SERVICE = "tensorflow.serving.ModelService"


def prediction_service(flow: Flow, settings: GrpcSettings) -> Any:
    """Return the gRPC handler of PredictionService."""
    codecs: tuple[type[_Codec], ...] = (_Predict, _Classify, _Regress, _MultiInference)
    handlers = {codec.api: computing(flow, partial(codec, settings)) for codec in codecs}
    metadata_type = get_model_metadata_pb2.GetModelMetadataRequest
    handlers["GetModelMetadata"] = reading(
        flow, "GetModelMetadata", metadata_type, partial(_metadata, flow.catalogue)
    )
    return grpc.method_handlers_generic_handler(PREDICTION_SERVICE, handlers)


class _Codec(MessageCodec):
    """Base of the methods that run a model."""

    def __init__(self, settings: GrpcSettings, raw: bytes) -> None:
        super().__init__(raw)
        self._settings = settings


class _Predict(_Codec):
    api = "Predict"
    request_type = predict_pb2.PredictRequest
    _signature: str

    def prepare(self, acquire: Callable[[ModelSpec], Call]) -> Sequence[SignatureRun]:
        request = self.parsed()
        self.model = request.model_spec.name
        self._signature = request.model_spec.signature_name or DEFAULT_SIGNATURE
        signature = acquire(model_spec(request)).signature(self._signature)
        if self._settings.check_method_names:
            check_method(signature)
        return (SignatureRun(signature, _arrays(signature, request.inputs), request.output_filter),)

    def encode(self, call: Call, outputs: Sequence[Outputs]) -> bytes:
        spec = conversion.model_spec(self.model, call.version, self._signature)
        as_content = self._settings.tensor_content
        return conversion.predict_response(spec, outputs[0], as_content=as_content)


class _Examples(_Codec):
    """Base of methods that take tf.train.Examples."""

    response_type: ClassVar[Any]
    _request: Any
    _prepared: Sequence[PreparedRun]

    def prepare(self, acquire: Callable[[ModelSpec], Call]) -> Sequence[SignatureRun]:
        self._request = self.parsed()
        examples = conversion.examples_from(self._request.input)
        self._prepared = self.prepared(acquire, *examples)
        return [each.run for each in self._prepared]

    def prepared(
        self, acquire: Callable[[ModelSpec], Call], examples: list[bytes], context: bytes
    ) -> Sequence[PreparedRun]:
        """Return the runs on the examples."""
        request, checks = self._request, self._settings.check_method_names
        self.model, name = request.model_spec.name, request.model_spec.signature_name
        method = CLASSIFY if self.api == "Classify" else REGRESS
        call = acquire(model_spec(request))
        prepared = classification.prepare(
            call, method, name, examples, context, check_method=checks
        )
        return (prepared,)

    def encode(self, call: Call, outputs: Sequence[Outputs]) -> bytes:
        spec = _resolved(self._request.model_spec, call.version)
        response = self.response_type(model_spec=spec)
        conversion.fill_result(response.result, self._prepared[0].read(outputs[0]))
        return _serialized(response)


class _Classify(_Examples):
    api = "Classify"
    request_type = classification_pb2.ClassificationRequest
    response_type = classification_pb2.ClassificationResponse


class _Regress(_Examples):
    api = "Regress"
    request_type = regression_pb2.RegressionRequest
    response_type = regression_pb2.RegressionResponse


class _MultiInference(_Examples):
    api = "MultiInference"
    request_type = inference_pb2.MultiInferenceRequest

    def prepared(
        self, acquire: Callable[[ModelSpec], Call], examples: list[bytes], context: bytes
    ) -> Sequence[PreparedRun]:
        tasks, checks = self._request.tasks, self._settings.check_method_names
        first = tasks[0].model_spec if tasks else model_pb2.ModelSpec()
        self.model = first.name
        call = acquire(spec_from(first))
        planned = conversion.tasks_from(tasks)
        return classification.infer(call, planned, examples, context, check_method=checks)

    def encode(self, call: Call, outputs: Sequence[Outputs]) -> bytes:
        response = inference_pb2.MultiInferenceResponse()
        tasks = self._request.tasks
        for task, prepared, found in zip(tasks, self._prepared, outputs, strict=True):
            entry = response.results.add(model_spec=_resolved(task.model_spec, call.version))
            is_classes = task.method_name == CLASSIFY
            result = entry.classification_result if is_classes else entry.regression_result
            conversion.fill_result(result, prepared.read(found))
        return _serialized(response)


def _metadata(catalogue: Catalogue, request: Any) -> bytes:
    spec = model_spec(request)
    if not request.metadata_field:
        raise invalid_argument("GetModelMetadataRequest must specify at least one metadata_field")
    for field in request.metadata_field:
        if field != "signature_def":
            raise invalid_argument(f"Metadata field {field} is not supported")
    return _serialized(conversion.metadata_response(catalogue.metadata(spec)))


def _arrays(signature: Signature, tensors: Mapping[str, Any]) -> dict[str, Array]:
    # Before decoding, as an input of a few bytes may make an array of MAX_REPEATED_BYTES.
    check_inputs(signature, tensors.keys())
    return {alias: from_proto(alias, proto) for alias, proto in tensors.items()}


def _resolved(spec: Any, version: int) -> Any:
    return conversion.model_spec(spec.name, version, spec.signature_name or DEFAULT_SIGNATURE)


def _serialized(message: Any) -> bytes:
    encoded: bytes = message.SerializeToString()
    return encoded


class ModelService:
    """The methods of ModelService.

    Args:
        manager: Replaces the list of models; None if clients may not.
        monitor: The metrics that a reload reports; None for none.
        trusted: Names of models that clients cannot move, see `reloaded_models`.
    """

    def __init__(
        self,
        flow: Flow,
        manager: ModelManager | None = None,
        monitor: Monitor | None = None,
        trusted: frozenset[str] = frozenset(),
    ) -> None:
        self._trusted = trusted
        self._flow = flow
        self._manager = manager
        self._monitor = monitor

    def handlers(self) -> Any:
        """Return the gRPC handler of the service."""
        status_type = get_model_status_pb2.GetModelStatusRequest
        reload_type = model_management_pb2.ReloadConfigRequest
        reload = "HandleReloadConfigRequest"
        handlers = {
            "GetModelStatus": reading(self._flow, "GetModelStatus", status_type, self._status),
            reload: reading(self._flow, reload, reload_type, self._reload),
        }
        return grpc.method_handlers_generic_handler(MODEL_SERVICE, handlers)

    def _status(self, request: Any) -> bytes:
        """Return the status of a model's versions; labels are ignored."""
        if not request.HasField("model_spec"):
            raise invalid_argument("Missing ModelSpec")
        spec = request.model_spec
        version = spec.version.value if spec.HasField("version") else None
        return _serialized(
            conversion.status_response(self._flow.catalogue.statuses(spec.name, version))
        )

    async def _reload(self, request: Any) -> bytes:
        """Replace the list of models, and return the increase of metrics meanwhile.

        A failure becomes the call's status. TensorFlow Serving also writes it into a response,
        which gRPC does not send.
        """
        manager = self._manager
        if manager is None:
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
        names, pool = frozenset(request.metric_names), self._flow.pool
        loop = asyncio.get_running_loop()
        before = await loop.run_in_executor(pool, self._counters, names)
        models = reloaded_models(request.config, manager.models, self._trusted)
        await asyncio.wrap_future(manager.reconfigure(models))
        return await loop.run_in_executor(pool, self._reloaded, names, before)

    def _reloaded(self, names: frozenset[str], before: dict[str, int]) -> bytes:
        response = model_management_pb2.ReloadConfigResponse()
        response.status.SetInParent()
        for name, value in sorted(self._counters(names).items()):
            response.metric.add(name=name, int64_value_increase=value - before.get(name, 0))
        return _serialized(response)

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

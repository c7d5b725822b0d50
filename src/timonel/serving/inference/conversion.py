"""Convert values to and from the protos of TensorFlow Serving's API. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from google.protobuf import json_format

from timonel.serving.inference.classification import Classes, MultiInferenceTask
from timonel.serving.manager.catalogue import Metadata
from timonel.serving.manager.plan import VersionStatus
from timonel.serving.protos.messages import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    meta_graph_pb2,
    model_pb2,
    predict_pb2,
    tensor_shape_pb2,
    types_pb2,
)
from timonel.serving.protos.tensors import encode, to_proto
from timonel.serving.signature import Array, Signature, TensorSpec
from timonel.wire import tag, varint


def _tag(message: Any, field: str) -> bytes:
    return tag(message.DESCRIPTOR.fields_by_name[field].number)


_OUTPUTS = _tag(predict_pb2.PredictResponse, "outputs")
_MODEL_SPEC = _tag(predict_pb2.PredictResponse, "model_spec")
_KEY = _tag(predict_pb2.PredictResponse.OutputsEntry, "key")
_VALUE = _tag(predict_pb2.PredictResponse.OutputsEntry, "value")


def tasks_from(protos: Iterable[Any]) -> list[MultiInferenceTask]:
    """Return the tasks of a MultiInferenceRequest."""
    return [
        MultiInferenceTask(each.model_spec.name, each.model_spec.signature_name, each.method_name)
        for each in protos
    ]


def model_spec(name: str, version: int, signature_name: str = "") -> Any:
    """Return the ModelSpec for a response."""
    spec = model_pb2.ModelSpec(name=name, signature_name=signature_name)
    spec.version.value = version
    return spec


def predict_response(spec: Any, outputs: Mapping[str, Array], *, as_content: bool = False) -> bytes:
    """Return a serialized PredictResponse."""
    parts: list[bytes] = []
    for name, array in outputs.items():
        key = name.encode()
        value = encode(array, as_content=as_content)
        entry = (_KEY, varint(len(key)), key, _VALUE, varint(len(value)))
        size = sum(map(len, entry)) + len(value)
        parts += (_OUTPUTS, varint(size), *entry, value)
    encoded = spec.SerializeToString()
    return b"".join((*parts, _MODEL_SPEC, varint(len(encoded)), encoded))


def examples_from(given: Any) -> tuple[list[bytes], bytes]:
    """Return the serialized examples of an Input, and their shared context."""
    if given.WhichOneof("kind") == "example_list_with_context":
        content = given.example_list_with_context
        return _serialized(content.examples), content.context.SerializeToString()
    return _serialized(given.example_list.examples), b""


def fill_result(message: Any, result: Classes | Array) -> None:
    """Fill a ClassificationResult, or a RegressionResult with float32 [n]."""
    if isinstance(result, list):
        for row in result:
            entry = message.classifications.add()
            for label, score in row:
                entry.classes.add(label=label.decode(errors="replace"), score=score)
    else:
        for value in result.tolist():
            message.regressions.add(value=value)


def status_response(statuses: tuple[VersionStatus, ...]) -> Any:
    """Return a GetModelStatusResponse."""
    message = get_model_status_pb2.GetModelStatusResponse()
    for status in statuses:
        entry = message.model_version_status.add(
            version=status.number,
            state=get_model_status_pb2.ModelVersionStatus.State.Value(status.state.value),
        )
        entry.status.error_code = int(status.code)
        entry.status.error_message = status.message
    return message


def signature_map(metadata: Metadata) -> Any:
    """Return a SignatureDefMap."""
    message = get_model_metadata_pb2.SignatureDefMap()
    for name, signature in metadata.signatures.items():
        message.signature_def[name].CopyFrom(_signature_def(signature))
    return message


def metadata_response(metadata: Metadata) -> Any:
    """Return a GetModelMetadataResponse."""
    message = get_model_metadata_pb2.GetModelMetadataResponse(
        model_spec=model_spec(metadata.name, metadata.version)
    )
    message.metadata["signature_def"].Pack(signature_map(metadata))
    return message


def as_json(message: Any) -> dict[str, Any]:
    """Return a message as JSON like TensorFlow Serving: all fields, proto names."""
    return json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )


def _serialized(examples: Any) -> list[bytes]:
    return [example.SerializeToString() for example in examples]


def _signature_def(signature: Signature) -> Any:
    message = meta_graph_pb2.SignatureDef(method_name=signature.method_name)
    for name, spec in signature.inputs.items():
        message.inputs[name].CopyFrom(_tensor_info(spec))
    for name, spec in signature.outputs.items():
        message.outputs[name].CopyFrom(_tensor_info(spec))
    for name, value in signature.defaults.items():
        message.defaults[name].CopyFrom(to_proto(value))
    return message


def _tensor_info(spec: TensorSpec) -> Any:
    shape = tensor_shape_pb2.TensorShapeProto(unknown_rank=spec.shape is None)
    for size in spec.shape or ():
        shape.dim.add(size=size)
    info = meta_graph_pb2.TensorInfo(dtype=types_pb2.DataType.Value(spec.dtype), tensor_shape=shape)
    if spec.encoding == "coo_sparse":
        values, indices, dense_shape = spec.parts
        info.coo_sparse.values_tensor_name = values
        info.coo_sparse.indices_tensor_name = indices
        info.coo_sparse.dense_shape_tensor_name = dense_shape
    elif spec.encoding == "composite_tensor":
        for part in spec.parts:
            info.composite_tensor.components.add(name=part)
    else:
        info.name = spec.tensor
    return info

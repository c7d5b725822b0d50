"""Our values as the protos of TensorFlow Serving's API. Imports TensorFlow: servers only."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from google.protobuf import json_format
from tensorflow.core.framework import tensor_shape_pb2, types_pb2
from tensorflow.core.protobuf import meta_graph_pb2
from tensorflow_serving.apis import get_model_metadata_pb2, get_model_status_pb2

from timonel.serving.core import Metadata
from timonel.serving.runtimes.base import Array, Signature, TensorSpec
from timonel.serving.versions import VersionStatus


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
    message = get_model_metadata_pb2.GetModelMetadataResponse()
    message.model_spec.name = metadata.name
    message.model_spec.version.value = metadata.version
    message.metadata["signature_def"].Pack(signature_map(metadata))
    return message


def tensor_json(value: Array) -> dict[str, Any]:
    """Return a tensor as TensorFlow Serving prints it: every field, by its proto name."""
    return json_format.MessageToDict(
        tf.make_tensor_proto(value),
        preserving_proto_field_name=True,
        always_print_fields_with_no_presence=True,
    )


def _signature_def(signature: Signature) -> Any:
    message = meta_graph_pb2.SignatureDef(method_name=signature.method_name)
    for name, spec in signature.inputs.items():
        message.inputs[name].CopyFrom(_tensor_info(spec))
    for name, spec in signature.outputs.items():
        message.outputs[name].CopyFrom(_tensor_info(spec))
    for name, value in signature.defaults.items():
        message.defaults[name].CopyFrom(tf.make_tensor_proto(value))
    return message


def _tensor_info(spec: TensorSpec) -> Any:
    shape = tensor_shape_pb2.TensorShapeProto(unknown_rank=spec.shape is None)
    for size in spec.shape or ():
        shape.dim.add(size=size)
    return meta_graph_pb2.TensorInfo(
        name=spec.tensor, dtype=types_pb2.DataType.Value(spec.dtype), tensor_shape=shape
    )

"""Messages of TensorFlow Serving's configuration files that no package on PyPI provides."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, wrappers_pb2

_PACKAGE = "tensorflow.serving"
_FIELD = descriptor_pb2.FieldDescriptorProto
_TYPES = {"string": _FIELD.TYPE_STRING, "bool": _FIELD.TYPE_BOOL, "int64": _FIELD.TYPE_INT64}
FIELDS: Mapping[str, Mapping[str, str]] = {
    "SSLConfig": {
        "server_key": "string",
        "server_cert": "string",
        "custom_ca": "string",
        "client_verify": "bool",
    },
    "PrometheusConfig": {"enable": "bool", "path": "string"},
    "MonitoringConfig": {"prometheus_config": f"{_PACKAGE}.PrometheusConfig"},
    "BatchingParameters": {
        "max_batch_size": "google.protobuf.Int64Value",
        "batch_timeout_micros": "google.protobuf.Int64Value",
        "max_enqueued_batches": "google.protobuf.Int64Value",
        "num_batch_threads": "google.protobuf.Int64Value",
        "thread_pool_name": "google.protobuf.StringValue",
        "allowed_batch_sizes": "repeated int64",
        "pad_variable_length_inputs": "bool",
        "enable_large_batch_splitting": "google.protobuf.BoolValue",
        "max_execution_batch_size": "google.protobuf.Int64Value",
    },
}
"""Types of fields by name, in field-number order."""


@functools.cache
def config_message(name: str) -> type[Any]:
    """Return the class of a message in `FIELDS`."""
    file = descriptor_pb2.FileDescriptorProto(
        name="timonel/config.proto",
        package=_PACKAGE,
        syntax="proto3",
        dependency=["google/protobuf/wrappers.proto"],
    )
    for message, fields in FIELDS.items():
        added = file.message_type.add(name=message)
        for number, (field, kind) in enumerate(fields.items(), 1):
            _, repeated, scalar = kind.rpartition("repeated ")
            made = added.field.add(name=field, number=number)
            made.label = _FIELD.LABEL_REPEATED if repeated else _FIELD.LABEL_OPTIONAL
            if scalar in _TYPES:
                made.type = _TYPES[scalar]
            else:
                made.type, made.type_name = _FIELD.TYPE_MESSAGE, f".{kind}"
    # A separate pool: TensorFlow Serving's protos, if loaded, may define the same names.
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(wrappers_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))

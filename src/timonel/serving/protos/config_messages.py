"""Messages of TensorFlow Serving's configuration files that no package on PyPI provides."""

from __future__ import annotations

import functools
from typing import Any

from google.protobuf import wrappers_pb2

from timonel.serving.protos.tables import Messages, class_of, pool_of

_PACKAGE = "tensorflow.serving"
FIELDS: Messages = {
    "SSLConfig": (
        "string server_key",
        "string server_cert",
        "string custom_ca",
        "bool client_verify",
    ),
    "PrometheusConfig": ("bool enable", "string path"),
    "MonitoringConfig": (f"{_PACKAGE}.PrometheusConfig prometheus_config",),
    "BatchingParameters": (
        "google.protobuf.Int64Value max_batch_size",
        "google.protobuf.Int64Value batch_timeout_micros",
        "google.protobuf.Int64Value max_enqueued_batches",
        "google.protobuf.Int64Value num_batch_threads",
        "google.protobuf.StringValue thread_pool_name",
        "repeated int64 allowed_batch_sizes",
        "bool pad_variable_length_inputs",
        "google.protobuf.BoolValue enable_large_batch_splitting",
        "google.protobuf.Int64Value max_execution_batch_size",
    ),
}


@functools.cache
def config_message(name: str) -> Any:
    """Return the class of a message in `FIELDS`."""
    imported = (wrappers_pb2.DESCRIPTOR,)
    pool = pool_of("timonel/config.proto", _PACKAGE, FIELDS, imported=imported)
    return class_of(pool, f"{_PACKAGE}.{name}")

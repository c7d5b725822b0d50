"""Parse TensorFlow Serving's monitoring configuration file."""

from __future__ import annotations

import functools
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from timonel.serving.manager.model_config import parse_text_proto
from timonel.serving.settings import METRICS_PATH

_FIELD = descriptor_pb2.FieldDescriptorProto
_PACKAGE = "tensorflow.serving"


def metrics_path_from(text: str, path: str) -> str | None:
    """Return the metrics path from a ``--monitoring_config_file``; None if disabled.

    Args:
        text: The file's text: a MonitoringConfig as text proto.
        path: The file, for the error message.

    Raises:
        TextProtoError: The text is not such a proto.
    """
    config = parse_text_proto(text, _config_class()(), path)
    if not config.prometheus_config.enable:
        return None
    return config.prometheus_config.path or METRICS_PATH


@functools.cache
def _config_class() -> type[Any]:
    """Return the class of MonitoringConfig, which no package on PyPI provides."""
    file = descriptor_pb2.FileDescriptorProto(
        name="timonel/monitoring_config.proto", package=_PACKAGE, syntax="proto3"
    )
    prometheus = file.message_type.add(name="PrometheusConfig")
    prometheus.field.add(name="enable", number=1, type=_FIELD.TYPE_BOOL, label=1)
    prometheus.field.add(name="path", number=2, type=_FIELD.TYPE_STRING, label=1)
    file.message_type.add(name="MonitoringConfig").field.add(
        name="prometheus_config",
        number=1,
        type=_FIELD.TYPE_MESSAGE,
        label=1,
        type_name=f".{_PACKAGE}.PrometheusConfig",
    )
    # Use a separate pool: the default pool may get this message some day.
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(
        pool.FindMessageTypeByName(f"{_PACKAGE}.MonitoringConfig")
    )

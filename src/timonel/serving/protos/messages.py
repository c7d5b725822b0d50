"""The protos of TensorFlow and of its Serving API, without TensorFlow.

``tensorflow.core`` is generated code in empty packages, but importing any of it first runs
``tensorflow/__init__.py``: five seconds and half a gigabyte that a process which only speaks the
protocol has no use for. So these modules are imported with a bare package in TensorFlow's place,
which is taken away again at the end. A later ``import tensorflow`` gets the real thing, which
finds the modules loaded and goes on with the same classes. Where TensorFlow is there already,
nothing is replaced.

All code of the server takes its protos from here. It is first imported when a process starts,
before there are threads that could import TensorFlow at the same moment.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Iterator
from types import ModuleType

_NAME = "tensorflow"


@contextlib.contextmanager
def _bare_package() -> Iterator[None]:
    """Put an empty package with TensorFlow's path in its place, unless it is loaded."""
    spec = None if _NAME in sys.modules else importlib.util.find_spec(_NAME)
    if spec is None:
        yield
        return
    bare = ModuleType(_NAME)
    bare.__path__ = list(spec.submodule_search_locations or ())
    sys.modules[_NAME] = bare
    try:
        yield
    finally:
        if sys.modules.get(_NAME) is bare:
            del sys.modules[_NAME]


with _bare_package():
    from tensorflow.core.example import example_pb2
    from tensorflow.core.framework import tensor_pb2, tensor_shape_pb2, types_pb2
    from tensorflow.core.protobuf import config_pb2, meta_graph_pb2, saved_model_pb2
    from tensorflow_serving.apis import (
        classification_pb2,
        get_model_metadata_pb2,
        get_model_status_pb2,
        inference_pb2,
        input_pb2,
        model_management_pb2,
        model_pb2,
        model_service_pb2,
        predict_pb2,
        prediction_log_pb2,
        prediction_service_pb2,
        regression_pb2,
        session_service_pb2,
        status_pb2,
    )
    from tensorflow_serving.config import (
        log_collector_config_pb2,
        logging_config_pb2,
        model_server_config_pb2,
        platform_config_pb2,
    )

__all__ = [
    "classification_pb2",
    "config_pb2",
    "example_pb2",
    "get_model_metadata_pb2",
    "get_model_status_pb2",
    "inference_pb2",
    "input_pb2",
    "log_collector_config_pb2",
    "logging_config_pb2",
    "meta_graph_pb2",
    "model_management_pb2",
    "model_pb2",
    "model_server_config_pb2",
    "model_service_pb2",
    "platform_config_pb2",
    "predict_pb2",
    "prediction_log_pb2",
    "prediction_service_pb2",
    "regression_pb2",
    "saved_model_pb2",
    "session_service_pb2",
    "status_pb2",
    "tensor_pb2",
    "tensor_shape_pb2",
    "types_pb2",
]

"""Protos of TensorFlow and TensorFlow Serving, imported without TensorFlow.

``tensorflow.core`` is generated code in empty packages, but importing any of it first runs
``tensorflow/__init__.py``: five seconds and half a gigabyte that a process needs only for the
protos. So these modules are imported with an empty package in TensorFlow's place, which is removed
afterwards. A later ``import tensorflow`` loads the real package, which finds these modules loaded
and shares their classes. If TensorFlow is already loaded, nothing is replaced.

All code of the server imports its protos from here. The first import is at the start of a process,
before other threads could import TensorFlow at the same time.
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
    """Replace TensorFlow by an empty package, unless it is loaded.

    The empty package has TensorFlow's path.
    """
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
    from tensorflow.core.util import event_pb2
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
    "event_pb2",
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

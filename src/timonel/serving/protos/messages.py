"""Protos of TensorFlow and TensorFlow Serving, imported without TensorFlow.

All code of the server imports its protos from here; see `timonel.models.protos`. An import adds
services to protobuf's default pool, where the reflection of gRPC finds them.
"""

from __future__ import annotations

from timonel.models.protos import bare_package, meta_graph_pb2, saved_model_pb2

with bare_package():
    from tensorflow.core.example import example_pb2
    from tensorflow.core.framework import tensor_pb2, tensor_shape_pb2, types_pb2
    from tensorflow.core.protobuf import config_pb2
    from tensorflow.core.util import event_pb2
    from tensorflow_serving.apis import (
        classification_pb2,
        get_model_metadata_pb2,
        get_model_status_pb2,
        inference_pb2,
        model_management_pb2,
        model_pb2,
        model_service_pb2,
        predict_pb2,
        prediction_log_pb2,
        prediction_service_pb2,
        regression_pb2,
    )
    from tensorflow_serving.config import model_server_config_pb2

__all__ = [
    "classification_pb2",
    "config_pb2",
    "event_pb2",
    "example_pb2",
    "get_model_metadata_pb2",
    "get_model_status_pb2",
    "inference_pb2",
    "meta_graph_pb2",
    "model_management_pb2",
    "model_pb2",
    "model_server_config_pb2",
    "model_service_pb2",
    "predict_pb2",
    "prediction_log_pb2",
    "prediction_service_pb2",
    "regression_pb2",
    "saved_model_pb2",
    "tensor_pb2",
    "tensor_shape_pb2",
    "types_pb2",
]

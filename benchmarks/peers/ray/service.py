"""TensorFlow Serving's service as Ray's proxies see it: messages stay bytes until a replica.

The generated module would have them import TensorFlow.
"""

from __future__ import annotations

from typing import Any

import grpc


def add_prediction_service(servicer: Any, server: Any) -> None:
    """Have ``server`` hand calls of Predict to ``servicer``."""
    methods = {"Predict": grpc.unary_unary_rpc_method_handler(servicer.Predict)}
    name = "tensorflow.serving.PredictionService"
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, methods),))

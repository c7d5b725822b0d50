"""Serving: TensorFlow Serving's API over versions that come and go."""

from timonel.serving.client import Prediction, predict
from timonel.serving.examples import curl_example
from timonel.serving.launch import serve
from timonel.serving.process import Server
from timonel.serving.registry import ServerRecord, running_servers

__all__ = [
    "Prediction",
    "Server",
    "ServerRecord",
    "curl_example",
    "predict",
    "running_servers",
    "serve",
]

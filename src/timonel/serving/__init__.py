"""Model serving over TensorFlow Serving's REST and gRPC APIs.

Public names are imported on first use. Each process of a server imports modules of this package,
and should not also load the code of the other processes.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from timonel.serving.client.curl import curl_example
    from timonel.serving.client.predict import Prediction, predict
    from timonel.serving.handle import Server
    from timonel.serving.launch import serve
    from timonel.serving.server_records import ServerRecord, running_servers

__all__ = [
    "Prediction",
    "Server",
    "ServerRecord",
    "curl_example",
    "predict",
    "running_servers",
    "serve",
]

_HOME_OF = {
    "Prediction": "client.predict",
    "Server": "handle",
    "ServerRecord": "server_records",
    "curl_example": "client.curl",
    "predict": "client.predict",
    "running_servers": "server_records",
    "serve": "launch",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""Model serving over TensorFlow Serving's REST and gRPC APIs.

Public names are imported on first use. Each process of a server imports modules of this package,
and should not also load the code of the other processes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from timonel.lazy import lazy_names

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

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "client.curl": ("curl_example",),
        "client.predict": ("Prediction", "predict"),
        "handle": ("Server",),
        "launch": ("serve",),
        "server_records": ("ServerRecord", "running_servers"),
    },
)

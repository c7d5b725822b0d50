"""Endpoints: models behind one address, with replicas that follow the load."""

from __future__ import annotations

from typing import TYPE_CHECKING

from timonel.lazy import lazy_names

if TYPE_CHECKING:
    from timonel.endpoints.client import predict
    from timonel.endpoints.handle import Endpoint, list_endpoints, open_endpoint
    from timonel.endpoints.launch import deploy

__all__ = ["Endpoint", "deploy", "list_endpoints", "open_endpoint", "predict"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "client": ("predict",),
        "handle": ("Endpoint", "list_endpoints", "open_endpoint"),
        "launch": ("deploy",),
    },
)

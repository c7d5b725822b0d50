"""Endpoints: models behind one address, with replicas that follow the load."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from timonel.endpoints.handle import Endpoint, list_endpoints, open_endpoint
    from timonel.endpoints.launch import deploy

__all__ = ["Endpoint", "deploy", "list_endpoints", "open_endpoint"]

_HOMES = {
    "Endpoint": "handle",
    "deploy": "launch",
    "list_endpoints": "handle",
    "open_endpoint": "handle",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)

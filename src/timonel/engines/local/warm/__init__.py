"""Warm parents: processes that preload modules and fork tasks."""

from timonel.engines.local.warm.client import WarmRequest, ensure_parent, request_agent
from timonel.engines.local.warm.runtime import WarmUnavailableError

__all__ = ["WarmRequest", "WarmUnavailableError", "ensure_parent", "request_agent"]

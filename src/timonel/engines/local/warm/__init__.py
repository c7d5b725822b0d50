"""Warm parents: processes that have imported what tasks need, and fork them at once."""

from timonel.engines.local.warm.client import WarmRequest, ensure_parent, request_agent
from timonel.engines.local.warm.runtime import WarmUnavailableError

__all__ = ["WarmRequest", "WarmUnavailableError", "ensure_parent", "request_agent"]

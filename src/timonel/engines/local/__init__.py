"""The engine that runs jobs as processes of this machine."""

from timonel.engines.local.engine import LocalEngine

__all__ = ["LocalEngine"]

"""Local engine: run jobs as processes on this machine."""

from timonel.engines.local.engine import LocalEngine

__all__ = ["LocalEngine"]

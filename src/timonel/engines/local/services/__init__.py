"""Local service engine: run services as processes on this machine."""

from timonel.engines.local.services.engine import LocalServiceEngine

__all__ = ["LocalServiceEngine"]

"""Loaded versions in processes of their own, which may crash, hang or leak and cost one version."""

from timonel.serving.isolation.runtime import ProcessRuntime

__all__ = ["ProcessRuntime"]

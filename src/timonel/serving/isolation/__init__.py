"""Process isolation: a version that crashes, hangs or leaks affects no other."""

from timonel.serving.isolation.runtime import ProcessRuntime

__all__ = ["ProcessRuntime"]

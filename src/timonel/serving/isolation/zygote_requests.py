"""Requests to the zygote process, and its environment variables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from timonel.serving.settings import RuntimeSettings

MESSAGE_BYTES = 1 << 17
_KEPT = "TIMONEL_KEPT_"
# A process with threads must not fork. When loaded, numpy's linear algebra starts a thread per
# processor, and pyarrow's allocator one that frees memory in the background.
_WITHOUT_THREADS = {
    "OPENBLAS_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}


@dataclass(frozen=True)
class WarmOrders:
    """First message to the zygote.

    Args:
        runtime: The runtime's factory, as ``module:attribute``.
        path: The module search path.
    """

    runtime: str
    path: list[str]


@dataclass(frozen=True)
class ForkOrder:
    """Request for a compute process; sent with its end of the connection.

    Args:
        token: A number that identifies the response.
        name: The name of the process.
        folder: The version's folder.
        runtime: `RuntimeSettings` as JSON values.
        threads: Concurrent requests.
        memory_limit: Bytes of shared memory for responses.
    """

    token: int
    name: str
    folder: str
    runtime: dict[str, Any]
    threads: int
    memory_limit: int

    @property
    def settings(self) -> RuntimeSettings:
        """Settings of the runtime."""
        return RuntimeSettings.model_validate(self.runtime)

    def as_json(self) -> dict[str, Any]:
        """Return the request as JSON values."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


def environment(env: Mapping[str, str], *, restored: bool = False) -> dict[str, str]:
    """Return an environment in which imports start no threads.

    Args:
        env: The present environment.
        restored: Undo the changes of this function instead.
    """
    result = dict(env)
    for name, value in _WITHOUT_THREADS.items():
        if not restored:
            if name in env:
                result[_KEPT + name] = env[name]
            result[name] = value
        elif (kept := result.pop(_KEPT + name, None)) is not None:
            result[name] = kept
        else:
            result.pop(name, None)
    return result

"""What the front asks of the warm parent, and the environment that it is started in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from timonel.serving.settings import RuntimeSettings

MESSAGE_BYTES = 1 << 17
_KEPT = "TIMONEL_KEPT_"
# A process with threads must not fork. numpy's linear algebra starts as many as there are
# processors when it is loaded, and pyarrow's allocator one that frees memory in the background.
_WITHOUT_THREADS = {
    "OPENBLAS_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}


@dataclass(frozen=True)
class WarmOrders:
    """The first message.

    Args:
        runtime: ``module:attribute`` of what makes the runtime.
        path: Where modules are found.
    """

    runtime: str
    path: list[str]


@dataclass(frozen=True)
class ForkOrder:
    """A request for a compute process; its end of the connection comes with it.

    Args:
        token: A number for the answer.
        name: What to call the process.
        folder: The version to load.
        runtime: `RuntimeSettings` as JSON's values.
        threads: Requests at the same time.
        memory_limit: Bytes of shared memory for its answers.
    """

    token: int
    name: str
    folder: str
    runtime: dict[str, Any]
    threads: int
    memory_limit: int

    @property
    def settings(self) -> RuntimeSettings:
        """How the version computes."""
        return RuntimeSettings.model_validate(self.runtime)

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON's values."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


def environment(env: Mapping[str, str], *, restored: bool = False) -> dict[str, str]:
    """Return the environment for a process in which imports start no threads.

    Args:
        env: The environment as it is.
        restored: Undo what this function did to it.
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

"""Training jobs: the `train` function, run handles, and the in-task `context`.

Public names are imported on first use: the command line's help needs only the options, and a task
not the control side.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from timonel.training.handles import Job, Run
    from timonel.training.launch import train
    from timonel.training.worker.context import TrainingContext, context, report

__all__ = ["Job", "Run", "TrainingContext", "context", "report", "train"]

_HOME_OF = {
    "Job": "handles",
    "Run": "handles",
    "TrainingContext": "worker.context",
    "context": "worker.context",
    "report": "worker.context",
    "train": "launch",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

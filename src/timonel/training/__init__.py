"""Training jobs: the `train` function, run handles, and the in-task `context`.

Public names are imported on first use: the command line's help needs only the options, and a task
not the control side.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from timonel.lazy import lazy_names

if TYPE_CHECKING:
    from timonel.training.handles import Job, Run
    from timonel.training.launch import train
    from timonel.training.runs import list_runs, read_run
    from timonel.training.worker.context import TrainingContext, context, report

__all__ = ["Job", "Run", "TrainingContext", "context", "list_runs", "read_run", "report", "train"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "handles": ("Job", "Run"),
        "launch": ("train",),
        "runs": ("list_runs", "read_run"),
        "worker.context": ("TrainingContext", "context", "report"),
    },
)

"""Training jobs: the `train` function, run handles, and the in-task `context`."""

from timonel.training.handles import Job, Run
from timonel.training.launch import train
from timonel.training.worker.context import TrainingContext, context

__all__ = ["Job", "Run", "TrainingContext", "context", "train"]

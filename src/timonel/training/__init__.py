"""Training: scripts as jobs, and what scripts may ask of the job they run in."""

from timonel.training.handles import Job, Run
from timonel.training.launch import train
from timonel.training.worker.context import TrainingContext, context

__all__ = ["Job", "Run", "TrainingContext", "context", "train"]

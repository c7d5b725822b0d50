"""Live display of training progress, for terminals, pipes and notebooks."""

from timonel.training.display.roles import role_lines, roles_line, waiting_line
from timonel.training.display.view import TrainingView, outcome_line, progress_lines

__all__ = [
    "TrainingView",
    "outcome_line",
    "progress_lines",
    "role_lines",
    "roles_line",
    "waiting_line",
]

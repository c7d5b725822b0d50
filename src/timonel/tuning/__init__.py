"""Hyperparameter tuning: studies of trials, each an ordinary training job.

Public names are imported on first use: Optuna takes a second to import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from timonel.lazy import lazy_names

if TYPE_CHECKING:
    from timonel.tuning.launch import resume, tune
    from timonel.tuning.records import TrialRecord
    from timonel.tuning.studies import list_studies, open_study
    from timonel.tuning.study import Study

__all__ = ["Study", "TrialRecord", "list_studies", "open_study", "resume", "tune"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "launch": ("resume", "tune"),
        "records": ("TrialRecord",),
        "studies": ("list_studies", "open_study"),
        "study": ("Study",),
    },
)

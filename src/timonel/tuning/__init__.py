"""Hyperparameter tuning: studies of trials, each an ordinary training job.

Public names are imported on first use: Optuna takes a second to import.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from timonel.tuning.launch import resume, tune
    from timonel.tuning.records import TrialRecord
    from timonel.tuning.study import Study, list_studies, open_study

__all__ = ["Study", "TrialRecord", "list_studies", "open_study", "resume", "tune"]

_HOME_OF = {
    "Study": "study",
    "TrialRecord": "records",
    "list_studies": "study",
    "open_study": "study",
    "resume": "launch",
    "tune": "launch",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

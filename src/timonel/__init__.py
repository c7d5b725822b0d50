"""Convert data, train TensorFlow models as jobs, publish versions, serve them.

    import timonel

    timonel.convert("digits", "data/digits")
    run = timonel.train("train.py", data="data/digits", workers=2)
    version = run.export("digits")
    server = timonel.serve("digits", block=False)
    timonel.predict("digits", ["some_image.png"])

Names and defaults match those of the command line. Modules are loaded on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from timonel._version import __version__

if TYPE_CHECKING:
    from timonel.data import Dataset, convert
    from timonel.endpoints import Endpoint, deploy
    from timonel.engines.base import JobState, JobStatus
    from timonel.errors import TimonelError
    from timonel.models import ModelRepository, ModelVersion, export
    from timonel.serving import Prediction, Server, predict, serve
    from timonel.storage import Workspace, find_workspace
    from timonel.tracking import Artifact, RunRecord, lineage, list_runs, read_run
    from timonel.training import Job, Run, train
    from timonel.tuning import Study, tune

__all__ = [
    "Artifact",
    "Dataset",
    "Endpoint",
    "Job",
    "JobState",
    "JobStatus",
    "ModelRepository",
    "ModelVersion",
    "Prediction",
    "Run",
    "RunRecord",
    "Server",
    "Study",
    "TimonelError",
    "Workspace",
    "__version__",
    "convert",
    "deploy",
    "export",
    "find_workspace",
    "lineage",
    "list_runs",
    "predict",
    "read_run",
    "serve",
    "train",
    "tune",
]

_HOMES = {
    "data": ("Dataset", "convert"),
    "endpoints": ("Endpoint", "deploy"),
    "engines.base": ("JobState", "JobStatus"),
    "errors": ("TimonelError",),
    "models": ("ModelRepository", "ModelVersion", "export"),
    "serving": ("Prediction", "Server", "predict", "serve"),
    "storage": ("Workspace", "find_workspace"),
    "tracking": ("Artifact", "RunRecord", "lineage", "list_runs", "read_run"),
    "training": ("Job", "Run", "train"),
    "tuning": ("Study", "tune"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

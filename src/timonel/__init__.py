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

from typing import TYPE_CHECKING

from timonel._version import __version__
from timonel.lazy import lazy_names

if TYPE_CHECKING:
    from timonel.batch import BatchPrediction, predict_batch
    from timonel.data import Dataset, convert
    from timonel.endpoints import Endpoint, deploy, predict
    from timonel.engines.base import JobState, JobStatus
    from timonel.errors import TimonelError
    from timonel.models import ModelRepository, ModelVersion, alias, export
    from timonel.retention import delete, prune
    from timonel.serving import Prediction, Server, serve
    from timonel.storage import Workspace, find_workspace
    from timonel.tracking import Artifact, RunRecord, lineage
    from timonel.training import Job, Run, list_runs, read_run, train
    from timonel.tuning import Study, tune

__all__ = [
    "Artifact",
    "BatchPrediction",
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
    "alias",
    "convert",
    "delete",
    "deploy",
    "export",
    "find_workspace",
    "lineage",
    "list_runs",
    "predict",
    "predict_batch",
    "prune",
    "read_run",
    "serve",
    "train",
    "tune",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "batch": ("BatchPrediction", "predict_batch"),
        "data": ("Dataset", "convert"),
        "endpoints": ("Endpoint", "deploy", "predict"),
        "engines.base": ("JobState", "JobStatus"),
        "errors": ("TimonelError",),
        "models": ("ModelRepository", "ModelVersion", "alias", "export"),
        "retention": ("delete", "prune"),
        "serving": ("Prediction", "Server", "serve"),
        "storage": ("Workspace", "find_workspace"),
        "tracking": ("Artifact", "RunRecord", "lineage"),
        "training": ("Job", "Run", "list_runs", "read_run", "train"),
        "tuning": ("Study", "tune"),
    },
    modules=("data", "tracking", "training"),
)

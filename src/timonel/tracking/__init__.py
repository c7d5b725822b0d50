"""Run records as files, lineage, and mirrors of them elsewhere."""

from timonel.tracking.artifacts import Artifact
from timonel.tracking.events import follow_events
from timonel.tracking.records import MetricPoint, RunHeader, RunRecord, list_runs, read_run
from timonel.tracking.writer import RunWriter, new_run_id, open_run, start_run

__all__ = [
    "Artifact",
    "MetricPoint",
    "RunHeader",
    "RunRecord",
    "RunWriter",
    "follow_events",
    "list_runs",
    "new_run_id",
    "open_run",
    "read_run",
    "start_run",
]

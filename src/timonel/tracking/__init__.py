"""Run records as files, lineage, and mirrors in other trackers."""

from timonel.tracking.events import follow_events
from timonel.tracking.graph import ArtifactNode, LineageGraph, RunNode
from timonel.tracking.reading import list_runs, read_run
from timonel.tracking.records import Artifact, MetricPoint, RunHeader, RunRecord
from timonel.tracking.render import as_json, as_lines, as_rich
from timonel.tracking.resolve import lineage
from timonel.tracking.writer import RunWriter, new_run_id, open_run, start_run

__all__ = [
    "Artifact",
    "ArtifactNode",
    "LineageGraph",
    "MetricPoint",
    "RunHeader",
    "RunNode",
    "RunRecord",
    "RunWriter",
    "as_json",
    "as_lines",
    "as_rich",
    "follow_events",
    "lineage",
    "list_runs",
    "new_run_id",
    "open_run",
    "read_run",
    "start_run",
]

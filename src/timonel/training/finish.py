"""``python -m timonel.training.finish WORKSPACE RUN_ID``: the end of a training run's record.

The engine runs it once, after the job has ended, however it did. Imports no TensorFlow.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from timonel.engines import JobState, JobStatus
from timonel.errors import TimonelError
from timonel.models.exports import read_export, saved_model_of
from timonel.storage import Workspace, find_workspace, read_document
from timonel.storage.atomic import sweep
from timonel.tracking import Artifact, RunWriter, open_run, read_run

OUTCOME = "TIMONEL_JOB_OUTCOME"


def finish_run(workspace: Workspace, run_id: str, outcome: JobStatus) -> None:
    """Record what a job has made and how it ended; a run that has an end keeps it.

    Args:
        workspace: Where the run is.
        run_id: The run, whose id is the job's.
        outcome: How the job ended.
    """
    if read_run(workspace, run_id).is_finished:
        return
    writer = open_run(workspace, run_id)
    sweep(workspace.jobs / run_id)  # an export that a task was killed in
    for artifact in (*_exports(workspace.jobs / run_id), *_checkpoints(workspace.jobs / run_id)):
        writer.output(artifact)
    _finish(writer, outcome)


def _finish(writer: RunWriter, outcome: JobStatus) -> None:
    if outcome.state is JobState.SUCCEEDED:
        writer.finish("succeeded")
    elif outcome.state is JobState.STOPPED:
        writer.finish("stopped", outcome.message, "stopped")
    else:
        writer.finish("failed", outcome.message, outcome.cause.value if outcome.cause else None)


def _exports(job_dir: Path) -> Iterator[Artifact]:
    folder = job_dir / "export"
    try:
        export = read_export(folder)
    except TimonelError:
        return  # none was made, or not to its end
    yield Artifact("savedmodel", str(saved_model_of(folder)), export.digest)


def _checkpoints(job_dir: Path) -> Iterator[Artifact]:
    """Yield the newest checkpoint of each ``fit`` call."""
    for folder in sorted((job_dir / "checkpoints").glob("fit-*")):
        newest = _newest(folder)
        if newest is not None:
            path, state = newest
            epochs = len(state["epochs"]) if isinstance(state["epochs"], list) else 0
            yield Artifact(
                "checkpoint", str(path), str(state["digest"]), metadata={"epochs": epochs}
            )


def _newest(folder: Path) -> tuple[Path, Mapping[str, object]] | None:
    for path in sorted(folder.glob("[ef]*"), key=lambda found: found.name, reverse=True):
        try:
            return path, read_document(path / "state.json", "checkpoint")
        except TimonelError:
            continue
    return None


def main(arguments: list[str]) -> int:
    """Finish the run that the arguments name with the outcome that the environment has."""
    root, run_id = arguments
    outcome = JobStatus.model_validate_json(os.environ[OUTCOME])
    finish_run(find_workspace(root, create=False), run_id, outcome)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Complete a training run's record: ``python -m timonel.training.finish WORKSPACE RUN_ID``.

The engine runs it once after the job has ended, with any outcome. Imports no TensorFlow.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from timonel.engines import JobState, JobStatus
from timonel.engines.environment import OUTCOME
from timonel.errors import Interrupted, TimonelError
from timonel.models.exports import read_export, saved_model_of
from timonel.storage import Workspace, digest_file, find_workspace, is_local, read_document
from timonel.storage.atomic import sweep
from timonel.tracking import Artifact, open_run, read_run
from timonel.training.checkpoints import ARRAYS, STATE, best_folder, newest_first
from timonel.training.evaluations import EvaluationRecords
from timonel.training.option_values import parse_best
from timonel.training.settings import Settings
from timonel.training.spec import FILE_NAME, read_spec
from timonel.training.upload import upload_job


def finish_run(workspace: Workspace, run_id: str, outcome: JobStatus) -> None:
    """Record a job's artifacts and outcome, unless the run is already finished."""
    if read_run(workspace, run_id).is_finished:
        return
    writer = open_run(workspace, run_id)
    sweep(workspace.jobs / run_id)  # remove a partial export of a killed task
    for artifact in (*_exports(workspace.jobs / run_id), *_checkpoints(workspace, run_id)):
        writer.output(artifact)
    if outcome.state is JobState.SUCCEEDED:
        writer.finish("succeeded", at=outcome.ended_at)
    elif outcome.state is JobState.STOPPED:
        writer.finish("stopped", outcome.message, "stopped", at=outcome.ended_at)
    else:
        cause = outcome.cause.value if outcome.cause else None
        writer.finish("failed", outcome.message, cause, at=outcome.ended_at)


def interruption(workspace: Workspace, run_id: str) -> Interrupted:
    """Return the error for Ctrl-C, saying whether the job, which has ended, has checkpoints."""
    kept = any((workspace.jobs / run_id / "checkpoints").rglob(STATE))
    return Interrupted(
        f"interrupted, {run_id} has stopped",
        hint="its checkpoints are kept" if kept else "it saved no checkpoint",
    )


def _exports(job_dir: Path) -> Iterator[Artifact]:
    folder = job_dir / "export"
    try:
        export = read_export(folder)
    except TimonelError:
        return  # no complete export
    yield Artifact("savedmodel", str(saved_model_of(folder)), export.digest)


def _checkpoints(workspace: Workspace, run_id: str) -> Iterator[Artifact]:
    """Yield each ``fit`` call's newest checkpoint, and its best one if kept."""
    job_dir = workspace.jobs / run_id
    root = job_dir / "checkpoints"
    try:
        settings = read_spec(workspace.runs / run_id / FILE_NAME).settings
    except TimonelError:
        settings = Settings()  # a job with an unreadable spec has no checkpoints
    by = parse_best(settings.checkpoints.keep_best)
    records = EvaluationRecords(job_dir) if settings.evaluation.evaluator else None
    for fit in range(len(list(root.glob("fit-*")))):
        best = best_folder(root, fit, by, records)
        newest = next(iter(newest_first(root, fit)), None)
        for folder in dict.fromkeys((best, newest)):
            if folder is not None:
                yield from _checkpoint(folder, is_best=folder == best)


def _checkpoint(folder: Path, *, is_best: bool) -> Iterator[Artifact]:
    try:
        state = read_document(folder / STATE, "checkpoint")
    except TimonelError:
        return
    metadata: dict[str, Any] = {"epochs": len(state["epochs"])}
    if is_best:
        metadata["best"] = True
    yield Artifact("checkpoint", str(folder), _identity(folder, state), metadata=metadata)


def _identity(folder: Path, state: Mapping[str, Any]) -> str | None:
    """Return a digest of a checkpoint's content: a checksum, as some have, does not identify it."""
    digest, arrays = str(state["digest"]), folder / ARRAYS
    if digest.startswith("sha256:"):
        return digest
    return digest_file(arrays) if arrays.is_file() else None


def main(arguments: list[str]) -> int:
    """Finish the run named by the arguments; the environment holds the job's outcome."""
    location, run_id = arguments
    outcome = JobStatus.model_validate_json(os.environ[OUTCOME])
    finish_run(find_workspace(location, create=False, offline=True), run_id, outcome)
    if not is_local(location):
        # The end is recorded: if the bucket is away, the sidecar uploads it later.
        upload_job(find_workspace(location, create=False), run_id)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

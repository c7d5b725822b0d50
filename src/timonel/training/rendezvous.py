"""How tasks that are started by hand find one run: the chief makes it, the others wait for it.

The run's id is made of the cluster and the run's name, so that all tasks know it, and of a number:
``train-<cluster>-<n>``. As long as a run has no end, whoever is started again goes on with it. All
tasks need one workspace, as their checkpoints are there: a folder that the machines share.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from timonel.errors import JobError, SpecError
from timonel.storage import Workspace
from timonel.tracking import RunRecord, open_run, read_run
from timonel.training import record
from timonel.training.options import JobOptions
from timonel.training.request import Request
from timonel.training.spec import FILE_NAME, TrainSpec, read_spec

_PATIENCE_S = 300.0
_POLL_S = 0.5
_OWN = {"run_id", "workspace", "script", "import_path", "pickled", "source", "data", "seed"}
"""What may differ between the machines of a job, or is the chief's to say."""


def run_prefix(tasks: Mapping[str, Sequence[str]], name: str | None) -> str:
    """Return how the ids of a cluster's runs begin.

    Args:
        tasks: The addresses of its tasks, by role.
        name: What the run is called.
    """
    text = json.dumps([{role: list(found) for role, found in tasks.items()}, name])
    return f"train-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def lead(request: Request, workspace: Workspace, prefix: str, options: JobOptions) -> Path:
    """Begin a run, or go on with the one that has no end; return what its tasks are told.

    Raises:
        SpecError: The run that has no end was asked for otherwise.
    """
    newest = _newest(workspace, prefix)
    if newest is not None and not read_run(workspace, newest).is_finished:
        place = workspace.runs / newest / FILE_NAME
        if not place.exists():  # whoever began it has not come so far
            return record.describe(request, open_run(workspace, newest), options)
        _check_same(request, workspace, read_spec(place), options)
        return place
    number = int(newest.rpartition("-")[2]) + 1 if newest else 1
    run_id = f"{prefix}-{number}"
    writer = record.begin(request, workspace, run_id, options)
    try:
        return record.describe(request, writer, options)
    except BaseException as error:
        writer.finish("failed", str(error), "engine")
        raise


class AlreadyEndedError(JobError):
    """The chief's run came to its end before a task of it had begun.

    Attributes:
        run_id: The run.
    """

    def __init__(self, run_id: str, status: str) -> None:
        super().__init__(
            f"expected a run to take part in, but {run_id} has ended ({status}) before "
            "this task began",
            hint="start it together with the chief; nothing of that run is left to do",
        )
        self.run_id = run_id


def follow(
    request: Request,
    workspace: Workspace,
    prefix: str,
    options: JobOptions,
    task_id: str,
    wait: Callable[[float], None] = time.sleep,
) -> TrainSpec:
    """Wait for the chief's run and return what this task is told: the same, with its own paths.

    Raises:
        AlreadyEndedError: The chief's run has just ended, and this task has had no part in it.
        JobError: The chief has made none in five minutes.
        SpecError: The chief was asked for something else.
    """
    for _ in range(int(_PATIENCE_S / _POLL_S)):
        newest = _newest(workspace, prefix)
        if newest is not None:
            run, place = read_run(workspace, newest), workspace.runs / newest / FILE_NAME
            if run.is_finished:
                _check_not_missed(run, workspace.jobs / newest / "tasks" / task_id)
            elif place.exists():
                return _check_same(request, workspace, read_spec(place), options)
        wait(_POLL_S)
    raise JobError(
        f"expected the chief's run {prefix}-... in {workspace.root} within {_PATIENCE_S:g} s, "
        "found none",
        hint="start the chief with the same --cluster and --name; all tasks need one workspace",
    )


def _check_not_missed(run: RunRecord, task_dir: Path) -> None:
    """Check that a run that has ended is not the one that this task was started for.

    A run is missed once: whoever starts the task again means the next one.

    Raises:
        AlreadyEndedError: It ended less than five minutes ago, and without this task.
    """
    if task_dir.exists() or time.time() - (run.ended_at or 0.0) > _PATIENCE_S:
        return
    task_dir.mkdir(parents=True)
    raise AlreadyEndedError(run.id, run.status)


def _newest(workspace: Workspace, prefix: str) -> str | None:
    numbers = [
        int(number)
        for path in workspace.runs.glob(f"{prefix}-*/run.json")
        if (number := path.parent.name.rpartition("-")[2]).isdecimal()
    ]
    return f"{prefix}-{max(numbers)}" if numbers else None


def _check_same(
    request: Request, workspace: Workspace, theirs: TrainSpec, options: JobOptions
) -> TrainSpec:
    """Return this task's own version of what the run's tasks are told.

    Raises:
        SpecError: It differs in what all tasks must agree on.
    """
    writer = open_run(workspace, theirs.run_id)
    ours = record.train_spec(request, writer, options)
    for field in TrainSpec.model_fields.keys() - _OWN:
        if getattr(ours, field) != getattr(theirs, field):
            raise SpecError(
                f"expected {field} of {theirs.run_id}, which has not ended, got another",
                hint="start every task with the same options, or another run with --name",
            )
    return ours.model_copy(update={"seed": theirs.seed})

"""Rendezvous of manually started tasks: the chief creates the run, the others wait.

The run's id is ``train-<cluster>-<n>``: a hash of the cluster and the run's name, so that all tasks
know it, and a counter. Tasks started again continue a run that has not ended. All tasks need one
workspace for their checkpoints: a folder that the machines share.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from timonel.errors import JobError, SpecError
from timonel.storage import Workspace
from timonel.tracking import RunRecord, open_run, read_run
from timonel.training import record
from timonel.training.cluster import Cluster
from timonel.training.request import JobOptions, TrainingRequest
from timonel.training.spec import FILE_NAME, TrainSpec, read_spec
from timonel.units import first_of

_PATIENCE_S = 300.0
_SILENT_S = 5.0
"""Time without progress after which the terminal shows what a task waits for."""
_PROBE_S = 1.0
_PROBES = 32
_NAMED = 4
_POLL_S = 0.5
_logger = logging.getLogger(__name__)
_OWN = {"run_id", "workspace", "script", "import_path", "pickled", "source", "data", "seed"}
"""Fields that may differ between machines, or that the chief decides."""


def run_prefix(tasks: Mapping[str, Sequence[str]], name: str | None) -> str:
    """Return the common prefix of the run ids of a cluster and a run's name."""
    text = json.dumps([{role: list(found) for role, found in tasks.items()}, name])
    return f"train-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def lead(
    request: TrainingRequest, workspace: Workspace, prefix: str, options: JobOptions
) -> TrainSpec:
    """Start a run or continue the unfinished one; return the tasks' document."""
    newest = _newest(workspace, prefix)
    if newest is not None and not read_run(workspace, newest).is_finished:
        place = workspace.runs / newest / FILE_NAME
        if not place.exists():  # the process that started it stopped before this point
            return read_spec(record.describe(request, open_run(workspace, newest), options))
        return _check_same(request, workspace, read_spec(place), options)
    number = int(newest.rpartition("-")[2]) + 1 if newest else 1
    run_id = f"{prefix}-{number}"
    writer = record.begin(request, workspace, run_id, options, None)
    try:
        return read_spec(record.describe(request, writer, options))
    except BaseException as error:
        writer.finish("failed", str(error), "engine")
        raise


class AlreadyEndedError(JobError):
    """The chief's run ended before this task had begun."""

    def __init__(self, run_id: str, status: str) -> None:
        super().__init__(
            f"The run {run_id} ended ({status}) before this task started",
            hint="start the task together with the chief",
        )
        self.run_id = run_id


def follow(
    request: TrainingRequest,
    workspace: Workspace,
    prefix: str,
    options: JobOptions,
    task_id: str,
    wait: Callable[[float], None] = time.sleep,
) -> TrainSpec:
    """Wait for the chief's run; return this task's document, with local paths."""
    for number in range(int(_PATIENCE_S / _POLL_S)):
        if number == int(_SILENT_S / _POLL_S):
            _logger.warning(
                "%s waits for the chief's run %s-... in %s", task_id, prefix, workspace.root
            )
        newest = _newest(workspace, prefix)
        if newest is not None:
            run, place = read_run(workspace, newest), workspace.runs / newest / FILE_NAME
            if run.is_finished:
                _check_not_missed(run, workspace.jobs / newest / "tasks" / task_id)
            elif place.exists():
                return _check_same(request, workspace, read_spec(place), options)
        wait(_POLL_S)
    raise JobError(
        f"The chief started no run {prefix}-... in {workspace.root} within {_PATIENCE_S:g} s",
        hint="start the chief with the same --cluster and --name; all tasks share one workspace",
    )


@contextlib.contextmanager
def naming_missing_tasks(cluster: Cluster, ready: Path) -> Iterator[None]:
    """Show which tasks do not answer, until this one creates the file ``ready``."""
    # TensorFlow waits for all tasks before it trains, and says nothing meanwhile.
    ended = threading.Event()
    watch = threading.Thread(target=_name_missing, args=(cluster, ready, ended), daemon=True)
    watch.start()
    try:
        yield
    finally:
        ended.set()


def _name_missing(cluster: Cluster, ready: Path, ended: threading.Event) -> None:
    if cluster.role == "evaluator":
        return  # it joins nobody
    others = {
        f"{role}-{index}": address
        for role, addresses in cluster.tasks.items()
        for index, address in enumerate(addresses)
        if role != "evaluator" and (role, index) != (cluster.role, cluster.index)
    }
    shown: list[str] = []
    while not ended.wait(_SILENT_S) and not ready.exists():
        with ThreadPoolExecutor(_PROBES) as pool:
            answers = pool.map(_answers, others.values())
        missing = [
            f"{task_id} ({address})"
            for (task_id, address), is_there in zip(others.items(), answers, strict=True)
            if not is_there
        ]
        if missing and missing != shown and not ended.is_set():
            _logger.warning(
                "%s waits for %s: start each with its --task-type and --task-index",
                cluster.task_id,
                first_of(missing, _NAMED),
            )
        shown = missing


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_PROBE_S).close()
    except OSError:
        return False
    return True


def _check_not_missed(run: RunRecord, task_dir: Path) -> None:
    """Check that the run has not ended in the last five minutes without this task."""
    # Each run is reported as missed once: a task started again waits for the next run.
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
    request: TrainingRequest, workspace: Workspace, theirs: TrainSpec, options: JobOptions
) -> TrainSpec:
    """Return this task's version of the run's document; shared options must be the same."""
    writer = open_run(workspace, theirs.run_id)
    ours = record.train_spec(request, writer, options, request.settings)
    for field in TrainSpec.model_fields.keys() - _OWN:
        if getattr(ours, field) != getattr(theirs, field):
            raise SpecError(
                f"{field} differs from the unfinished run {theirs.run_id}",
                hint="start every task with the same options, or start another run with --name",
            )
    return ours.model_copy(update={"seed": theirs.seed})

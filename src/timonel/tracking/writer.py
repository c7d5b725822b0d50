"""Write run records: ``run.json`` once, then events, one per line.

A run's folder is ``<workspace>/runs/<run id>/``. ``run.json`` holds what is known at the start and
never changes; everything later is an event. Any process of the run may append events.
"""

from __future__ import annotations

import logging
import secrets
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import orjson

from timonel._version import __version__
from timonel.errors import (
    AlreadyExistsError,
    Interrupted,
    NotFoundError,
    SpecError,
    TimonelError,
)
from timonel.storage import document
from timonel.storage.atomic import create_bytes
from timonel.storage.workspace import Workspace
from timonel.tracking.environment import environment, git_state, this_process
from timonel.tracking.events import FILE_NAME, FINISH, append_event, encode_json, encode_number
from timonel.tracking.records import Artifact
from timonel.tracking.redaction import redact_command, redact_params, redact_text, redact_value

_logger = logging.getLogger(__name__)

FinishStatus = Literal["succeeded", "failed", "stopped"]
RECORD_NAME = "run.json"
_ID_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-")


def new_run_id(kind: str, *, now: float | None = None) -> str:
    """Return an ID such as ``train-20261120-181530-7f3a``, also valid for jobs."""
    moment = time.strftime("%Y%m%d-%H%M%S", time.gmtime(now))
    return f"{kind}-{moment}-{secrets.token_hex(2)}"


def start_run(  # noqa: PLR0913 - these are a record's fields, all but two optional
    workspace: Workspace,
    kind: str,
    *,
    run_id: str | None = None,
    name: str | None = None,
    params: Mapping[str, Any] | None = None,
    inputs: Iterable[Artifact] = (),
    command: Sequence[str] | None = None,
    job_id: str | None = None,
    engine: str | None = None,
    parent: str | None = None,
    code_dir: Path | None = None,
) -> RunWriter:
    """Create the record of a run that starts now.

    Secrets are redacted from ``params`` and ``command``. Only an allowlist of environment variables
    is recorded.

    Args:
        workspace: The workspace for the record.
        kind: The kind of work: ``convert``, ``train``, ``export``, ...
        run_id: Its ID; a new one by default.
        name: A name for people.
        params: Parameters known at the start.
        inputs: Artifacts known at the start.
        command: The command line; that of this process by default.
        job_id: The job that does the work. Without a job this process is the run: if it dies
            without a finish event, the run counts as lost.
        engine: Name of the job's engine.
        parent: ID of the study that the run belongs to.
        code_dir: The folder whose git state is recorded; the current folder by default.

    Raises:
        AlreadyExistsError: A run with this ID exists.
        SpecError: The kind or the ID is not a valid folder name.
        InputError: The workspace cannot be written.
    """
    body = {
        "run_kind": kind,
        "name": name,
        "created_at": time.time(),
        "params": redact_params(params or {}),
        "inputs": [_shared(artifact, workspace) for artifact in inputs],
        "command": redact_command(sys.argv if command is None else command),
        "environment": environment(),
        "git": git_state(code_dir or Path.cwd()),
        "job_id": job_id,
        "engine": engine,
        "parent": parent,
        "process": None if job_id else this_process(),
        "timonel": __version__,
    }
    return RunWriter(workspace, _create(workspace, kind, run_id, body))


def open_run(workspace: Workspace, run_id: str) -> RunWriter:
    """Return a writer that appends to a run started by another process.

    Raises:
        NotFoundError: The run does not exist.
    """
    if not (workspace.runs / run_id / RECORD_NAME).is_file():
        raise NotFoundError(
            f"no run {run_id} in {workspace.runs}",
            hint="'timonel runs' lists the runs of this workspace",
        )
    return RunWriter(workspace, run_id)


class RunWriter:
    """Appends to a run's events.

    Safe to use from several threads and processes at once: each call writes one line. As a context
    manager it finishes the run: as succeeded, or as failed if the block raises an exception.
    """

    def __init__(self, workspace: Workspace, run_id: str) -> None:
        self.workspace = workspace
        self.run_id = run_id
        self.folder = workspace.runs / run_id
        self._events = self.folder / FILE_NAME
        self._finished = False
        # Times of a process must not jump when the system clock is set: epoch durations depend on
        # them.
        self._clock_offset_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)

    def params(self, params: Mapping[str, Any]) -> None:
        """Record parameters; later values replace earlier ones of the same name."""
        if params:
            self._append("params", {"params": redact_params(params)})

    def metrics(
        self, metrics: Mapping[str, float], step: int | None = None, epoch: int | None = None
    ) -> None:
        """Record metric values at a step or epoch, including NaN and infinity."""
        if metrics:
            values = {name: encode_number(value) for name, value in metrics.items()}
            place = {"step": step, "epoch": epoch}
            known = {name: int(value) for name, value in place.items() if value is not None}
            self._append("metrics", {"metrics": values, **known})

    def input(self, artifact: Artifact) -> None:
        """Record ``artifact`` as an input of the run."""
        self._append("input", {"artifact": _shared(artifact, self.workspace)})

    def output(self, artifact: Artifact) -> None:
        """Record ``artifact`` as an output of the run, ready for readers."""
        self._append("output", {"artifact": _shared(artifact, self.workspace)}, durable=True)

    def event(self, type: str, **fields: Any) -> None:  # noqa: A002 - the key in every event
        """Record any other event.

        Args:
            type: The type: ``progress``, ``dataset-loaded``, ``checkpoint``, ``restart``, ``log``,
                ...
            fields: JSON-able details; credentials in them are redacted by their format.
        """
        self._append(type, redact_value(fields))

    def finish(
        self,
        status: FinishStatus,
        message: str | None = None,
        cause: str | None = None,
        *,
        at: float | None = None,
    ) -> None:
        """Record the end of the run. Only the first recorded end counts.

        In a workspace in a bucket, the run is uploaded.

        Args:
            status: The final status.
            message: The reason, in one line for people.
            cause: The reason for programs, for example a value of ``engines.base.FailureCause``.
            at: The end time, by the clock of the observing process; now by default.

        Raises:
            InputError: The end cannot be written, or the run cannot be uploaded. The next command
                that lists runs on this machine uploads it.
        """
        self._finished = True
        fields = {"status": status, "message": message and redact_text(message), "cause": cause}
        known = {name: value for name, value in fields.items() if value is not None}
        self._append(FINISH, known if at is None else {"t": at, **known}, durable=True)
        if self.workspace.local_copy is not None:
            self.workspace.local_copy.runs.push(self.run_id)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._finished:
            return
        if error is None:
            self.finish("succeeded")
            return
        try:
            if isinstance(error, KeyboardInterrupt | Interrupted):
                self.finish("stopped", "stopped by the user", "stopped")
            else:
                self.finish("failed", str(error) or type(error).__name__, type(error).__name__)
        except TimonelError as second:
            _logger.warning("%s", second)  # the first error is the one to report

    def _append(self, type_: str, fields: Mapping[str, Any], *, durable: bool = False) -> None:
        now = self._clock_offset_s + time.clock_gettime(time.CLOCK_BOOTTIME)
        event = {"t": round(now, 6), "type": type_, **fields}
        append_event(self._events, event, durable=durable)


def _shared(artifact: Artifact, workspace: Workspace) -> dict[str, Any]:
    """Return an artifact as JSON, with a location that other machines understand."""
    body: dict[str, Any] = artifact.model_dump(mode="json")
    return {**body, "uri": workspace.uri_of(artifact.uri)}


def _create(workspace: Workspace, kind: str, run_id: str | None, body: Mapping[str, Any]) -> str:
    id_ = run_id or new_run_id(kind)
    if not kind or not set(id_) <= _ID_CHARACTERS or id_.startswith("-"):
        raise SpecError(f"expected a run id of lower-case letters, digits and '-', got {id_!r}")
    record = document("run", {"id": id_, **body})
    content = encode_json(record, orjson.OPT_INDENT_2)
    try:
        if workspace.local_copy is not None:
            workspace.local_copy.runs.create(id_, content + b"\n")
        create_bytes(workspace.runs / id_ / RECORD_NAME, content + b"\n")
    except AlreadyExistsError as error:
        if run_id is None:
            # Two runs of one kind started in the same second and drew the same four digits.
            return _create(workspace, kind, None, body)
        raise AlreadyExistsError(
            f"the run {run_id} already exists", hint="choose another run id"
        ) from error
    return id_

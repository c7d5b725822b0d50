"""Find and read run records."""

from __future__ import annotations

import logging
from pathlib import Path

from pydantic import ValidationError

from timonel.errors import CorruptError, NotFoundError, SpecError, TimonelError
from timonel.storage import read_document
from timonel.storage.workspace import Workspace
from timonel.tracking.events import FILE_NAME, read_events
from timonel.tracking.records import RunHeader, RunRecord, first_line, fold
from timonel.tracking.writer import RECORD_NAME

_logger = logging.getLogger(__name__)


def read_run(workspace: Workspace, ref: str = "last", kind: str | None = None) -> RunRecord:
    """Read a run.

    Args:
        workspace: The workspace of the run.
        ref: Its ID, a name (the newest run with that name), a unique prefix of an ID, or ``last``.
        kind: Consider only runs of this kind.

    Raises:
        NotFoundError: No run matches.
        SpecError: Several IDs have this prefix.
        FormatError: A newer release wrote the record.
        CorruptError: The record cannot be read.
    """
    is_id = _is_id(workspace, ref)
    if workspace.local_copy is not None:
        workspace.local_copy.runs.pull(ref if is_id else None)
    if is_id or _is_id(workspace, ref):
        found = _record(workspace.runs / ref)
        if kind in {None, found.kind}:
            return found
        raise NotFoundError(
            f"{ref} is a {found.kind} run, not a {kind} run",
            hint="'timonel runs' lists the runs of this workspace",
        )
    require_readable(workspace, ref)
    headers = _headers(workspace, kind)
    return _record(workspace.runs / _choose(headers, ref, kind).id)


def list_runs(workspace: Workspace, kind: str | None = None) -> list[RunRecord]:
    """Read all runs, or those of one kind, newest first.

    Unreadable records are logged and skipped: one broken folder must not hide the rest.
    """
    return [_folded(header, workspace.runs / header.id) for header in list_headers(workspace, kind)]


def list_headers(workspace: Workspace, kind: str | None = None) -> list[RunHeader]:
    """Read what was known at the start of all runs, or of those of one kind, newest first.

    Unreadable records are logged and skipped.
    """
    if workspace.local_copy is not None:
        workspace.local_copy.runs.pull()
    return _headers(workspace, kind)


def _headers(workspace: Workspace, kind: str | None) -> list[RunHeader]:
    headers = []
    for path in workspace.runs.glob(f"[!.]*/{RECORD_NAME}"):
        try:
            header = read_header(path.parent)
        except TimonelError as error:
            _logger.warning("skipped a run record: %s", error)
            continue
        if kind in {None, header.kind}:
            headers.append(header)
    return sorted(headers, key=lambda header: (header.created_at, header.id), reverse=True)


def read_header(folder: Path) -> RunHeader:
    """Read a run's ``run.json``."""
    path = folder / RECORD_NAME
    value = read_document(path, "run")
    try:
        return RunHeader.model_validate(value)
    except (ValidationError, TypeError) as error:
        raise CorruptError(f"{path} is not a valid run record: {first_line(error)}") from error


def require_readable(workspace: Workspace, ref: str) -> None:
    """Check that the run of an ID or unique prefix is readable.

    Does nothing if no single run matches.

    A listing skips unreadable records. A request for such a run must fail with the reason.
    """
    if not ref or "/" in ref or not workspace.runs.is_dir():
        return
    begun = [path for path in workspace.runs.iterdir() if path.name.startswith(ref)]
    exact = [path for path in begun if path.name == ref]
    found = exact or begun
    if len(found) == 1 and (found[0] / RECORD_NAME).is_file():
        read_header(found[0])


def _record(folder: Path) -> RunRecord:
    return _folded(read_header(folder), folder)


def _folded(header: RunHeader, folder: Path) -> RunRecord:
    return fold(header, folder, *read_events(folder / FILE_NAME))


def _is_id(workspace: Workspace, ref: str) -> bool:
    return "/" not in ref and ref not in {"", ".", ".."} and (workspace.runs / ref).is_dir()


def _choose(headers: list[RunHeader], ref: str, kind: str | None) -> RunHeader:
    """Return the header that matches ``ref``, from headers sorted newest first."""
    what = f"{'training' if kind == 'train' else kind} run" if kind else "run"
    if ref == "last" and headers:
        return headers[0]
    exact = [header for header in headers if ref in {header.id, header.name}]
    if exact:
        return exact[0]
    begun = [header for header in headers if ref and header.id.startswith(ref)]
    if len(begun) > 1:
        some = ", ".join(header.id for header in begun[:3])
        raise SpecError(
            f"{ref!r} matches {len(begun)} {what}s",
            hint=f"give a longer prefix: {some}",
        )
    if not begun and ref == "last" and not headers:
        raise NotFoundError(f"no {what} yet", hint="run 'timonel train SCRIPT' first")
    if not begun:
        raise NotFoundError(
            f"no {what} matches {ref!r}", hint="'timonel runs' lists the runs of this workspace"
        )
    return begun[0]

"""Feed mirrors from run records, without losing or duplicating events.

``runs/<id>/mirrors/<name>.json`` holds the position of a mirror, ``<name>.log`` beside it the
errors. A mirror's failure never fails the run: it is logged, and the next sync continues.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from timonel.errors import NotFoundError, TimonelError
from timonel.storage import append_line, exclusive, read_document, write_document
from timonel.storage.workspace import Workspace
from timonel.tracking.events import FILE_NAME, FINISH, EventReader, is_over
from timonel.tracking.mirrors.base import Mirror, installed_mirrors
from timonel.tracking.reading import list_runs, read_run
from timonel.tracking.records import RunRecord
from timonel.tracking.redaction import redact_text

_BATCH_BYTES = 1 << 20
_LOCK_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class SyncResult:
    """Result of feeding a run to a mirror.

    Attributes:
        run_id: The run.
        mirror: The mirror's name.
        events: The number of events sent in this sync.
        is_complete: Whether the end of the run has been mirrored.
        error: The reason why the sync failed, if it did.
    """

    run_id: str
    mirror: str
    events: int = 0
    is_complete: bool = False
    error: str | None = None


@dataclass(frozen=True)
class _Position:
    offset: int = 0
    is_complete: bool = False


class MirrorFeed:
    """Feeds a run to a mirror from the saved position on.

    The position is shared between processes.
    """

    def __init__(self, workspace: Workspace, run_id: str, mirror: Mirror) -> None:
        self._workspace = workspace
        self._run_id = run_id
        self._mirror = mirror
        self._events = workspace.runs / run_id / FILE_NAME
        self._folder = workspace.runs / run_id / "mirrors"
        self._has_begun = False

    def sync(self) -> SyncResult:
        """Send new events to the mirror. Blocks.

        Never raises the mirror's errors.
        """
        result = SyncResult(self._run_id, self._mirror.name)
        try:
            with exclusive(self._file("lock"), timeout_s=_LOCK_TIMEOUT_S):
                count, is_complete = self._sync()
        except Exception as error:  # noqa: BLE001 - a mirror may raise anything; it is logged
            self._has_begun = False
            self._log(error)
            is_complete = self._position().is_complete
            return replace(
                result, is_complete=is_complete, error=f"{type(error).__name__}: {error}"
            )
        return replace(result, events=count, is_complete=is_complete)

    def restart(self) -> None:
        """Reset the mirror's position: the next sync sends all events again."""
        self._has_begun = False
        self._file("json").unlink(missing_ok=True)

    def is_behind(self) -> bool:
        """Return whether the mirror lacks events, judging by the saved position."""
        position = self._position()
        size = self._events.stat().st_size if self._events.is_file() else 0
        return not position.is_complete or position.offset < size

    def _sync(self) -> tuple[int, bool]:
        """Return the number of events sent, and whether the mirror has the run's end."""
        position, count = self._position(), 0
        if not self._has_begun and not self._mirror.begin(self._run()):
            position = _Position()
        self._has_begun = True
        reader = EventReader(self._events, position.offset)
        while True:
            batch = reader.read(_BATCH_BYTES)
            if reader.offset == position.offset:
                break
            self._mirror.events(batch)
            count += len(batch)
            position = _Position(reader.offset, is_over(batch, position.is_complete))
            self._save(position)
        if not count and not position.is_complete and (run := self._run()).status == "lost":
            lost = {"t": run.ended_at, "type": FINISH, "status": "lost", "message": run.message}
            self._mirror.events([lost])
            position = _Position(reader.offset, is_complete=True)
            self._save(position)
        if position.is_complete:
            self._mirror.end()
            self._has_begun = False
        return count, position.is_complete

    def _run(self) -> RunRecord:
        return read_run(self._workspace, self._run_id)

    def _position(self) -> _Position:
        try:
            value = read_document(self._file("json"), "mirror")
            return _Position(int(value["offset"]), bool(value["is_complete"]))
        except (TimonelError, KeyError, TypeError, ValueError):
            # Lost or corrupt: mirrors tolerate repeated events.
            return _Position()

    def _save(self, position: _Position) -> None:
        write_document(self._file("json"), "mirror", asdict(position))

    def _log(self, error: Exception) -> None:
        moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        text = "".join(traceback.format_exception(error, limit=-4)).rstrip()
        self._folder.mkdir(parents=True, exist_ok=True)
        append_line(self._file("log"), f"{moment} {redact_text(text)}")

    def _file(self, ending: str) -> Path:
        return self._folder / f"{self._mirror.name}.{ending}"


def sync_run(
    workspace: Workspace, run_id: str, mirrors: Sequence[Mirror] | None = None
) -> list[SyncResult]:
    """Feed a run to mirrors, by default to all installed and interested.

    Raises:
        NotFoundError: The run does not exist.
    """
    if not (workspace.runs / run_id).is_dir():
        raise NotFoundError(f"no run {run_id} in {workspace.runs}")
    chosen = installed_mirrors(workspace) if mirrors is None else mirrors
    run = read_run(workspace, run_id)
    return [MirrorFeed(workspace, run_id, mirror).sync() for mirror in chosen if mirror.wants(run)]


def sync_pending(
    workspace: Workspace,
    mirrors: Sequence[Mirror] | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> list[SyncResult]:
    """Feed the ended runs that are not completely mirrored yet, oldest first.

    Args:
        workspace: The workspace of the runs.
        mirrors: The mirrors to feed; all installed ones by default.
        stop: Called before each sync; once true, the rest is left to the next call.
    """
    chosen = installed_mirrors(workspace) if mirrors is None else mirrors
    results = []
    for run in reversed(list_runs(workspace) if chosen else []):
        for mirror in chosen if run.is_finished else ():
            feed = MirrorFeed(workspace, run.id, mirror)
            if mirror.wants(run) and feed.is_behind() and not stop():
                results.append(feed.sync())
    return results


def rebuild(
    workspace: Workspace,
    mirrors: Sequence[Mirror] | None = None,
    progress: Callable[[SyncResult], None] | None = None,
) -> list[SyncResult]:
    """Send all events of all runs to mirrors again, oldest run first.

    Runs that a mirror already has are completed, not duplicated.

    Args:
        workspace: The workspace of the runs.
        mirrors: The mirrors to feed; all installed ones by default.
        progress: Called after each run and mirror.
    """
    chosen = installed_mirrors(workspace) if mirrors is None else mirrors
    results = []
    for run in reversed(list_runs(workspace)):
        for mirror in filter(lambda mirror: mirror.wants(run), chosen):
            feed = MirrorFeed(workspace, run.id, mirror)
            feed.restart()
            results.append(feed.sync())
            if progress is not None:
                progress(results[-1])
    return results

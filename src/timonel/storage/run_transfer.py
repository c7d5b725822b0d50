"""Transfer runs between a bucket and the local copy of its workspace.

runs/<run>/run.json               created by a conditional request
runs/<run>/<file>                 written once
runs/<run>/events/<offset>.jsonl  a part of the local ``events.jsonl``, named by its first byte and
                                  created by a conditional request: an append that another machine's
                                  append precedes is refused

runs/<run>/deleted                the only object of a deleted run: copies of other machines go, too

Nothing is kept about what was transferred: both sides are listed and compared, so a killed process
leaves nothing to repair.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import re
import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from timonel.errors import AlreadyExistsError, CorruptError, NotFoundError
from timonel.storage.atomic import ASIDE_PREFIX, append_bytes, aside_dir, aside_name, sweep
from timonel.storage.blobs import Blob
from timonel.storage.growing_file import DivergedError, GrowingFile
from timonel.storage.locks import exclusive
from timonel.storage.object_store import ObjectStore, local_files

_logger = logging.getLogger(__name__)

RECORD, EVENTS = "run.json", "events.jsonl"
DELETED = "deleted"
_PART = re.compile(r"events/\d{15}\.jsonl")
_LOCAL = frozenset({"mirrors"})
_LOCK = ".push.lock"
_LOCK_TIMEOUT_S = 600.0


class RunTransfer:
    """Runs of a workspace in a bucket and in its local copy.

    Safe to use from several processes of one machine at once.

    Args:
        store: The bucket's objects below the workspace's URI.
    """

    def __init__(self, store: ObjectStore, root: Path) -> None:
        self._store = store
        self._root = root

    def pull(self, run_id: str | None = None) -> None:
        """Bring runs up to date, all or one, and push what an ended process left unpushed.

        If both this and another machine continued a run, the bucket's events count, and the local
        ones are kept beside them.
        """
        listed = self._store.find(f"runs/{run_id}" if run_id else "runs")
        runs = _by_run(listed)
        for name in {key.split("/")[1] for key in listed if key.endswith(f"/{DELETED}")}:
            if name not in runs:
                self._drop(name)
        known = {key: blob for blobs in runs.values() for key, blob in blobs.items()}
        missing = {
            key: self._root / key
            for key in known
            if _is_shared(key.split("/", 2)[2]) and not (self._root / key).is_file()
        }
        # A local run appears with its record, so that comes last.
        records = {key: path for key, path in missing.items() if path.name == RECORD}
        others = {key: path for key, path in missing.items() if key not in records}
        self._store.download(others, known)
        for name, error in self._pull_events(runs).items():
            if run_id:
                raise error
            _logger.warning("skipped run %s: %s", name, error)
            records.pop(f"runs/{name}/{RECORD}", None)
        self._store.download(records, known)
        for name in [run_id] if run_id else self._local_runs():
            if self._is_behind(name, runs.get(name, {})):
                self._push_left(name, is_asked_for=run_id is not None)

    def create(self, run_id: str, record: bytes) -> None:
        """Reserve a run's ID by writing its record to the bucket."""
        self._store.create(f"runs/{run_id}/{RECORD}", record)

    def check_continues(self, run_id: str) -> None:
        """Check that the local events continue the bucket's."""
        try:
            self._events(run_id).check(self._store.find(f"runs/{run_id}"))
        except DivergedError as error:
            raise self._continued(run_id) from error

    def push(self, run_id: str) -> None:
        """Upload a run's new files and events; events that end the run come last."""
        folder, record = self._folder(run_id), f"runs/{run_id}/{RECORD}"
        if not (folder / RECORD).is_file():
            raise NotFoundError(f"no run {run_id} in {self._root}")
        with exclusive(folder / _LOCK, timeout_s=_LOCK_TIMEOUT_S):
            blobs = self._store.find(f"runs/{run_id}")
            names = filter(_is_shared, local_files(folder))
            files = {f"runs/{run_id}/{name}": folder / name for name in names}
            if record not in blobs:
                self._store.create(record, files[record].read_bytes())
            for key in files.keys() & blobs.keys():
                self._check_same(key, files[key], blobs[key])
            new = files.keys() - blobs.keys() - {record}
            self._store.upload({key: files[key] for key in new})
            try:
                self._events(run_id).push(blobs)
            except DivergedError as error:
                raise self._continued(run_id) from error

    def _events(self, run_id: str) -> GrowingFile:
        return GrowingFile(self._store, f"runs/{run_id}/events", self._folder(run_id) / EVENTS)

    def _folder(self, run_id: str) -> Path:
        return self._root / "runs" / run_id

    def _local_runs(self) -> Iterator[str]:
        for path in (self._root / "runs").glob(f"*/{RECORD}"):
            if not path.parent.name.startswith(ASIDE_PREFIX):
                yield path.parent.name

    def _drop(self, run_id: str) -> None:
        """Remove the copy of a run that another machine has deleted."""
        folder = self._folder(run_id)
        aside = folder.with_name(aside_name(run_id))
        with contextlib.suppress(OSError):  # there is none, or another process removes it
            folder.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)

    def _is_behind(self, run_id: str, blobs: Mapping[str, Blob]) -> bool:
        """Return whether the bucket lacks a local run, or events of it."""
        folder = self._folder(run_id)
        if not (folder / RECORD).is_file():
            return False
        return f"runs/{run_id}/{RECORD}" not in blobs or self._events(run_id).is_longer(blobs)

    def _check_same(self, key: str, path: Path, blob: Blob) -> None:
        if not self._store.is_same(key, path, blob):
            raise AlreadyExistsError(
                f"{self._store.uri}/{key} differs from {path}",
                hint="another machine wrote it: remove the local file to use the bucket's",
            )

    def _push_left(self, run_id: str, *, is_asked_for: bool) -> None:
        """Push what an ended process left unpushed."""
        try:
            self.push(run_id)
        except DivergedError as error:
            self._set_aside(run_id, self._store.find(f"runs/{run_id}"), error)
        except AlreadyExistsError as error:
            if is_asked_for:
                raise
            _logger.warning("%s", error)  # one run must not hide the others

    def _pull_events(self, runs: Mapping[str, Mapping[str, Blob]]) -> dict[str, CorruptError]:
        """Append the bucket's new events to those of local runs; return errors by run."""
        new = {name: self._new_parts(name, blobs) for name, blobs in runs.items()}
        errors: dict[str, CorruptError] = {}
        if not any(new.values()):
            return errors
        sweep(self._root)
        with aside_dir(self._root / "events") as aside:
            # All at once: there may be hundreds, and each costs a request.
            blobs = {
                self._events(name).part_name(at): b
                for name, parts in new.items()
                for at, b in parts
            }
            self._store.download({key: aside / key for key in blobs}, blobs)
            for name, parts in new.items():
                contents = [(at, aside / self._events(name).part_name(at)) for at, _ in parts]
                try:
                    self._append(name, contents)
                except DivergedError as error:
                    self._set_aside(name, runs[name], error)
                except CorruptError as error:
                    errors[name] = error
        return errors

    def _new_parts(self, run_id: str, blobs: Mapping[str, Blob]) -> list[tuple[int, Blob]]:
        events = self._events(run_id)
        return [(at, blob) for at, blob in events.parts(blobs) if at + blob.size > events.size]

    def _append(self, run_id: str, parts: list[tuple[int, Path]]) -> None:
        """Append downloaded parts of events, given with their offsets in order."""
        if not parts:
            return
        events = self._events(run_id)
        with exclusive(events.path.parent / _LOCK, timeout_s=_LOCK_TIMEOUT_S):
            size, new = events.size, b""
            for start, part in parts:
                content, end = part.read_bytes(), size + len(new)
                if start > end:
                    raise CorruptError(
                        f"the events of {run_id} in {self._store.uri} are incomplete",
                        hint=f"an object below runs/{run_id}/events was deleted: restore it",
                    )
                if not content.startswith(events.content(start, min(size, start + len(content)))):
                    raise self._continued(run_id)
                new += content[end - start :]
            if new:
                append_bytes(events.path, new)

    def _set_aside(self, run_id: str, blobs: Mapping[str, Blob], error: DivergedError) -> None:
        """Keep diverged events in another file of the run, and take the bucket's."""
        path = self._folder(run_id) / EVENTS
        digest = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
        path.replace(path.with_name(f"diverged-{digest}.jsonl"))
        _logger.warning("%s; kept as diverged-%s.jsonl", error.message, digest)
        for damage in self._pull_events({run_id: blobs}).values():
            raise damage
        self.push(run_id)

    def _continued(self, run_id: str) -> DivergedError:
        return DivergedError(
            f"another machine continued the run {run_id} in {self._store.uri}",
            hint=f"stop one of them; the events of this one are in {self._folder(run_id)}",
        )


def _by_run(blobs: Mapping[str, Blob]) -> dict[str, dict[str, Blob]]:
    """Return the objects of each run that has a record."""
    runs: dict[str, dict[str, Blob]] = defaultdict(dict)
    for key, blob in blobs.items():
        if key.count("/") > 1:
            runs[key.split("/")[1]][key] = blob
    return {name: found for name, found in runs.items() if f"runs/{name}/{RECORD}" in found}


def _is_shared(name: str) -> bool:
    """Return whether a file of a run is in the bucket under the same name."""
    is_local = name in {EVENTS, _LOCK} or name.partition("/")[0] in _LOCAL
    return not is_local and _PART.fullmatch(name) is None

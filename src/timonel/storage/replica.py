"""Local replica of a workspace in a bucket.

Objects have the names that the files have in the replica, with these rules:

FORMAT, datasets/, studies/       documents, replaced as a whole
runs/<run>/run.json               created by a conditional request
runs/<run>/<file>                 written once
runs/<run>/events/<offset>.jsonl  a part of the local ``events.jsonl``, named by its first byte and
                                  created by a conditional request: an append that another machine's
                                  append precedes is refused
models/<name>/.numbers/<n>        reserves a number, by a conditional request
models/<name>/<n>/                written once; the file that makes it a model comes last
jobs/<run>/export/                likewise, its document last
jobs/<run>/checkpoints/           copied by the job's chief while it trains

Nothing is kept about what was transferred: both sides are listed and compared, so a killed process
leaves nothing to repair. The rest of ``jobs/``, ``servers/`` and ``services/`` belong to this
machine.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import shutil
import tempfile
import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from timonel.errors import AlreadyExistsError, CorruptError, NotFoundError
from timonel.storage.atomic import ASIDE_PREFIX, append_bytes, aside_name, publish_dir, sweep
from timonel.storage.blobs import Blob, Checksums, is_copy
from timonel.storage.locks import exclusive
from timonel.storage.object_store import ObjectStore, local_files

_logger = logging.getLogger(__name__)

RECORD, EVENTS = "run.json", "events.jsonl"
# One of these makes a folder complete.
_LAST = ("saved_model.pb", "saved_model.pbtxt", "model.py", "export.json")
_PART = re.compile(r"events/(\d{15})\.jsonl")
_LOCAL = frozenset({"mirrors"})
_LOCK = ".push.lock"
_LOCK_TIMEOUT_S = 600.0


def cache_folder() -> Path:
    """Return the user's cache folder of timonel."""
    try:
        parent = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # a user without a home, as in containers
        parent = Path(tempfile.gettempdir()) / f"cache-{os.getuid()}"
    return parent / "timonel"


def replica_folder(uri: str) -> Path:
    """Return the folder of the replica of the workspace at a URI."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", uri.rpartition("/")[2])[:64]
    digest = hashlib.sha256(uri.encode()).hexdigest()[:16]
    return cache_folder() / "workspaces" / f"{name}-{digest}"


class DivergedError(AlreadyExistsError):
    """Both this machine and another one continued a run."""


class Replica:
    """Transfers between a workspace in a bucket and its local replica.

    Safe to use from several processes of one machine at once.

    Args:
        store: The bucket's objects below the workspace's URI.
        root: The folder of the replica.
    """

    def __init__(self, store: ObjectStore, root: Path) -> None:
        self.store = store
        self.root = root

    def pull_runs(self, run_id: str | None = None) -> None:
        """Bring runs up to date, all or one, and push what an ended process left unpushed.

        If both this and another machine continued a run, the bucket's events count, and the local
        ones are kept beside them.

        Raises:
            AlreadyExistsError: Another machine wrote another file of a name.
            InputError: The bucket cannot be read.
        """
        folder = f"runs/{run_id}" if run_id else "runs"
        runs = _grouped(self.store.find(folder))
        missing: dict[str, Path] = {}
        for name, blobs in runs.items():
            if f"runs/{name}/{RECORD}" in blobs:
                missing |= {
                    key: self.root / key
                    for key in blobs
                    if not (_is_part(key) or (self.root / key).is_file())
                }
        # A local run appears with its record, so that comes last.
        records = {key: path for key, path in missing.items() if path.name == RECORD}
        others = {key: path for key, path in missing.items() if key not in records}
        known = {key: blob for blobs in runs.values() for key, blob in blobs.items()}
        self.store.download(others, known)
        for name, blobs in runs.items():
            try:
                self._pull_events_of(name, blobs)
            except CorruptError as error:
                if run_id:
                    raise
                _logger.warning("skipped run %s: %s", name, error)
                records.pop(f"runs/{name}/{RECORD}", None)
        self.store.download(records, known)
        for name in [run_id] if run_id else self._local_runs():
            if self._is_behind(name, runs.get(name, {})):
                self._push_left(name, is_asked_for=run_id is not None)

    def create_run(self, run_id: str, record: bytes) -> None:
        """Reserve a run's ID by writing its record to the bucket.

        Raises:
            AlreadyExistsError: A run of that ID exists.
        """
        self.store.create(f"runs/{run_id}/{RECORD}", record)

    def push_run(self, run_id: str) -> None:
        """Upload a run's new files and events; events that end the run come last.

        Raises:
            DivergedError: Another machine continued the run.
            AlreadyExistsError: Another machine wrote another file of a name.
            InputError: The bucket cannot be written.
        """
        folder = self.root / "runs" / run_id
        with exclusive(folder / _LOCK, timeout_s=_LOCK_TIMEOUT_S):
            blobs = self.store.find(f"runs/{run_id}")
            files = {
                f"runs/{run_id}/{name}": folder / name
                for name in local_files(folder)
                if name not in {EVENTS, _LOCK} and name.partition("/")[0] not in _LOCAL
            }
            record = f"runs/{run_id}/{RECORD}"
            if record in files and record not in blobs:
                self.store.create(record, files[record].read_bytes())
            for key in files.keys() & blobs.keys():
                self._check_same(key, files[key], blobs[key])
            self.store.upload(
                {k: path for k, path in files.items() if k not in blobs and k != record}
            )
            self._push_events(run_id, blobs)

    def push_file(self, path: Path) -> None:
        """Write a document of the replica to the bucket, replacing an earlier one."""
        self.store.write(self._key(path), path.read_bytes())

    def pull_files(self, folder: Path) -> None:
        """Download the documents in a folder of the replica that differ from the bucket's."""
        blobs = self.store.find(self._key(folder))
        stale = {
            key: self.root / key
            for key, blob in blobs.items()
            if not (self.root / key).is_file() or not is_copy(self.root / key, blob)
        }
        self.store.download(stale, blobs)

    def push_folder(self, source: Path, target: Path, *, replace: bool = False) -> None:
        """Upload a complete folder; the file that makes it complete comes last.

        Repeating an interrupted upload transfers only what is missing.

        Args:
            source: The folder with the content.
            target: The folder's place in the replica.
            replace: Replace a complete folder with other content.

        Raises:
            NotFoundError: The folder is not complete.
            AlreadyExistsError: The bucket has a complete folder with other content, and
                ``replace`` is false.
        """
        key = self._key(target)
        files = {f"{key}/{name}": source / name for name in local_files(source)}
        last = [name for name in (f"{key}/{each}" for each in _LAST) if name in files]
        if not last:
            raise NotFoundError(f"{source} holds no model")
        blobs = self.store.find(key)
        changed = {
            k: p for k, p in files.items() if k not in blobs or not self._is_same(k, p, blobs[k])
        }
        is_other = bool(changed) and last[-1] in blobs
        if is_other and not replace:
            raise AlreadyExistsError(
                f"{self.store.uri}/{key} exists with other content",
                hint="another process wrote it: repeat the command",
            )
        if is_other:
            self.store.delete([last[-1]])
            changed[last[-1]] = files[last[-1]]
        self.store.delete(sorted(blobs.keys() - files.keys()))
        self.store.upload({k: path for k, path in changed.items() if k != last[-1]})
        self.store.upload({k: path for k, path in changed.items() if k == last[-1]})

    def pull_folder(self, target: Path) -> bool:
        """Download a complete folder, all or nothing; return whether the replica has it."""
        if target.is_dir():
            return True
        key = self._key(target)
        blobs = self.store.find(key)
        if not any(f"{key}/{name}" in blobs for name in _LAST):
            return False
        sweep(target.parent)
        with contextlib.suppress(AlreadyExistsError), publish_dir(target) as aside:
            paths = {name: aside / name.removeprefix(f"{key}/") for name in blobs}
            self.store.download(paths, blobs)
        return True

    def delete_folder(self, target: Path) -> None:
        """Delete a folder from the bucket, first the file that makes it complete."""
        key = self._key(target)
        names = self.store.find(key)
        last = [name for name in (f"{key}/{each}" for each in _LAST) if name in names]
        self.store.delete([*last, *sorted(names.keys() - set(last))])

    def pull_models(self, name: str | None = None) -> None:
        """Bring the versions of a model up to date, or of all."""
        for model in [name] if name else self.store.folders("models"):
            numbers = {n for n in self.store.folders(f"models/{model}") if n.isdigit()}
            folder = self.root / "models" / model
            kept = {n for n in numbers if self.pull_folder(folder / n)}
            for gone in [path for path in _numbered(folder) if path.name not in kept]:
                aside = folder / aside_name(gone.name)
                with contextlib.suppress(OSError):  # another process removes it
                    gone.rename(aside)
                shutil.rmtree(aside, ignore_errors=True)

    def reserve_number(self, model: str, number: int) -> bool:
        """Reserve the number of a version; False if it was used before."""
        try:
            self.store.create(f"models/{model}/.numbers/{number}", uuid.uuid4().hex.encode())
        except AlreadyExistsError:
            return False
        return True

    def _key(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    def _local_runs(self) -> Iterator[str]:
        for path in (self.root / "runs").glob(f"*/{RECORD}"):
            if not path.parent.name.startswith(ASIDE_PREFIX):
                yield path.parent.name

    def _is_behind(self, run_id: str, blobs: Mapping[str, Blob]) -> bool:
        """Return whether the bucket lacks a local run, or events of it."""
        folder = self.root / "runs" / run_id
        if not (folder / RECORD).is_file():
            return False
        events = folder / EVENTS
        size = events.stat().st_size if events.is_file() else 0
        return f"runs/{run_id}/{RECORD}" not in blobs or size > _end(_parts(run_id, blobs))

    def _is_same(self, key: str, path: Path, blob: Blob) -> bool:
        found = is_copy(path, blob)
        return self.store.read(key) == path.read_bytes() if found is None else found

    def _check_same(self, key: str, path: Path, blob: Blob) -> None:
        if not self._is_same(key, path, blob):
            raise AlreadyExistsError(
                f"{self.store.uri}/{key} differs from {path}",
                hint="another machine wrote it: remove the local file to use the bucket's",
            )

    def _pull_events_of(self, run_id: str, blobs: Mapping[str, Blob]) -> None:
        try:
            self._pull_events(run_id, blobs)
        except DivergedError as error:
            self._set_aside(run_id, blobs, error)

    def _push_left(self, run_id: str, *, is_asked_for: bool) -> None:
        """Push what an ended process left unpushed."""
        try:
            self.push_run(run_id)
        except DivergedError as error:
            self._set_aside(run_id, self.store.find(f"runs/{run_id}"), error)
        except AlreadyExistsError as error:
            if is_asked_for:
                raise
            _logger.warning("%s", error)  # one run must not hide the others

    def _pull_events(self, run_id: str, blobs: Mapping[str, Blob]) -> None:
        path = self.root / "runs" / run_id / EVENTS
        parts = _parts(run_id, blobs)
        size = path.stat().st_size if path.is_file() else 0
        if size >= _end(parts):
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        with exclusive(path.parent / _LOCK, timeout_s=_LOCK_TIMEOUT_S):
            for start, blob in parts:
                size = path.stat().st_size if path.is_file() else 0
                if start + blob.size <= size:
                    continue
                content = self._part(run_id, start)
                self._check_prefix(run_id, path, start, content)
                append_bytes(path, content[size - start :])

    def _push_events(self, run_id: str, blobs: Mapping[str, Blob]) -> None:
        path = self.root / "runs" / run_id / EVENTS
        if not path.is_file():
            return
        parts = _parts(run_id, blobs)
        end = _end(parts)
        if parts:
            # The local events must continue those of the bucket.
            start, blob = parts[-1]
            if not _match(_content(path, start, start + blob.size), blob):
                self._check_prefix(run_id, path, start, self._part(run_id, start), whole=True)
        new = _content(path, end)
        new = new[: new.rfind(b"\n") + 1]
        if new:
            try:
                self.store.create(_part_name(run_id, end), new)
            except AlreadyExistsError as error:
                raise self._continued(run_id) from error

    def _part(self, run_id: str, start: int) -> bytes:
        return self.store.read(_part_name(run_id, start))

    def _check_prefix(
        self, run_id: str, path: Path, start: int, content: bytes, *, whole: bool = False
    ) -> None:
        """Check that the local events begin like the bucket's."""
        local = _content(path, start, start + len(content)) if path.is_file() else b""
        size = path.stat().st_size if path.is_file() else 0
        if start > size:
            raise CorruptError(
                f"the events of {run_id} in {self.store.uri} are incomplete",
                hint=f"an object below runs/{run_id}/events was deleted: restore it",
            )
        if not content.startswith(local) or (whole and local != content):
            raise self._continued(run_id)

    def _set_aside(self, run_id: str, blobs: Mapping[str, Blob], error: DivergedError) -> None:
        """Keep diverged events in another file of the run, and take the bucket's."""
        path = self.root / "runs" / run_id / EVENTS
        digest = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
        path.replace(path.with_name(f"diverged-{digest}.jsonl"))
        _logger.warning("%s; kept as diverged-%s.jsonl", error.message, digest)
        self._pull_events(run_id, blobs)
        self.push_run(run_id)

    def _continued(self, run_id: str) -> DivergedError:
        return DivergedError(
            f"another machine continued the run {run_id} in {self.store.uri}",
            hint=f"stop one of them; the events of this one are in {self.root / 'runs' / run_id}",
        )


def _grouped(blobs: Mapping[str, Blob]) -> dict[str, dict[str, Blob]]:
    """Return the objects of each run."""
    runs: dict[str, dict[str, Blob]] = defaultdict(dict)
    for key, blob in blobs.items():
        runs[key.split("/")[1]][key] = blob
    return runs


def _is_part(key: str) -> bool:
    return _PART.fullmatch(key.split("/", 2)[2]) is not None


def _parts(run_id: str, blobs: Mapping[str, Blob]) -> list[tuple[int, Blob]]:
    """Return the parts of a run's events with their offsets, in order."""
    found = ((_PART.fullmatch(key.removeprefix(f"runs/{run_id}/")), b) for key, b in blobs.items())
    return sorted(((int(m[1]), blob) for m, blob in found if m), key=lambda part: part[0])


def _end(parts: list[tuple[int, Blob]]) -> int:
    return parts[-1][0] + parts[-1][1].size if parts else 0


def _part_name(run_id: str, start: int) -> str:
    return f"runs/{run_id}/events/{start:015}.jsonl"


def _content(path: Path, start: int, end: int | None = None) -> bytes:
    with path.open("rb") as file:
        file.seek(start)
        return file.read(-1 if end is None else end - start)


def _match(content: bytes, blob: Blob) -> bool:
    sums = Checksums()
    sums.add(content)
    return sums.match(blob)


def _numbered(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.name.isdigit()] if folder.is_dir() else []

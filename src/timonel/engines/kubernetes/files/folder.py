"""Folders of a workspace that are the same in all processes of a job.

Each process finds its own changes with `SharedFolder.scan` and sends them to the coordinator, which
numbers them and sends them to all processes, the author included. So all make them in one order:

- A process ignores changes of a file that it has replaced or removed itself, until its own change
  comes back from the coordinator: that one is later in the order.
- Files of lines (``.jsonl``) may grow in several processes at once, as a run's events do: their
  changes append lines, so none is lost. Until a process joins again, its lines may have another
  order than the coordinator's. TensorBoard's files grow in one process each, and only their new
  bytes travel, too.
- A process that joins a coordinator, such as the next one, makes its files equal to the index. It
  keeps and sends again those changes of its own that the index lacks.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from timonel.engines.kubernetes.files.changes import Change, Index, Part, SharedContents, damaged
from timonel.engines.kubernetes.files.lines import missing_lines
from timonel.engines.kubernetes.files.records import (
    Draft,
    FileRecord,
    Fingerprint,
    append_to,
    grows,
    has_content,
    has_lines,
    matching,
    read_draft,
    status_of,
    tail_of,
)
from timonel.engines.kubernetes.files.tree import SharedTree
from timonel.errors import TimonelError
from timonel.storage.atomic import aside_name
from timonel.storage.object_store import ObjectStore

# Much shorter than the time for which the coordinator keeps objects that no file needs.
_UPLOADED_S = 600.0
_PARALLEL = 4


class SharedFolder:
    """Files of a process that are shared with all processes of a job. For one thread.

    Args:
        root: This process's copy of the workspace.
        folders: The shared folders, relative to the workspace.
        store: The bucket's objects below the workspace's URI.
        is_hub: Whether this process is the coordinator, whose own changes need no confirmation.
    """

    def __init__(
        self,
        root: Path,
        folders: Sequence[str],
        store: ObjectStore,
        job_id: str,
        *,
        is_hub: bool = False,
    ) -> None:
        self.author = uuid.uuid4().hex
        self._root = root
        self._tree = SharedTree(root, folders)
        self._store = store
        self._objects = SharedContents(store, job_id)
        self._is_hub = is_hub
        self._records: dict[str, FileRecord] = {}
        self._found: list[Change] = []
        self._serial = 0
        self._uploaded: dict[str, float] = {}

    def scan(self, *, to_end: bool = False) -> list[Change]:
        """Return local changes since the last call, in the order of writing.

        Time stamps define this order, to their granularity of some milliseconds; removals come
        last. Unreadable files, and files to which other processes append lines, may be out of
        order.

        Large content is uploaded before this returns. A file that changes during the scan is left
        for the next call, as are all later changes. After an error, the next call returns the
        changes that this one did not.

        Args:
            to_end: Whether programs have written all: incomplete last lines are complete.
        """
        self._notice(self._tree.find(self._records), to_end=to_end)
        return self._take_found()

    def apply(self, change: Change) -> list[Change]:
        """Apply a change unless a later local one exists; return the changes to forward.

        These are local changes found meanwhile and, in the coordinator, this change after them;
        `IndexStore.add` numbers them.

        A file that cannot be written here is left out; the coordinator still sends the change on.
        A change of another folder and a damaged one are dropped.
        """
        if not self._tree.accepts(change.name):
            return []
        try:
            self._make(change)
        except (OSError, TimonelError) as error:
            self._tree.skip(change.name, error)
            if isinstance(error, TimonelError):
                return self._take_found()
        self._record(change.name).version = change.version
        return [*self._take_found(), *([change] if self._is_hub else [])]

    def reset(self, index: Index) -> list[Change]:
        """Replace the files by those of an index; return local changes that it lacks.

        Except in the coordinator, these changes are kept: unconfirmed ones, and those that an
        earlier coordinator has lost. After an error, call it again.

        Files that cannot be written here, and those whose content is damaged, are left out.
        """
        if self._is_hub:
            for name, status in self._tree.files():
                self._record(name).seen = Fingerprint.of(status)
        else:
            self.scan(to_end=True)  # no task runs
        kept = {name for name in self._records if self._is_newer(name, index)}
        with ThreadPoolExecutor(_PARALLEL) as pool:
            taken = filter(self._tree.accepts, index.files.keys() - kept)
            list(pool.map(self._take, [index.files[name] for name in taken]))
        for name in self._records.keys() - kept - index.files.keys():
            with self._tree.skipping(name):
                self._tree.remove(self._root / name)
                del self._records[name]
        changes = []
        for name in sorted(kept, key=lambda name: self._records[name].order):
            with self._tree.skipping(name):
                if (change := self._resent(name, index.files.get(name))) is not None:
                    changes.append(change)
        for record in self._records.values():
            record.pending = []
        for change in changes:
            self._records[change.name].pending = [change]
        self._found.clear()
        return changes

    def _make(self, change: Change) -> None:
        path, record = self._root / change.name, self._record(change.name)
        if change.author == self.author:
            record.pending = [own for own in record.pending if own.serial > change.serial]
            return
        if self._tree.is_link(change.name):
            return
        if not record.is_known(status := status_of(path)):
            is_alone = grows(change.name)
            self._notice({change.name: status} if is_alone else self._tree.find(self._records))
        # Of own changes that follow this one, only appends leave something of it.
        if all(own.is_append for own in record.pending):
            if change.is_append and record.seen is not None:
                self._append(path, record, change)
            elif grows(change.name) or record.is_seen(status_of(path)):
                record = self._replace(path, change, _content(record.pending))
            record.is_own = False

    def _record(self, name: str) -> FileRecord:
        return self._records.setdefault(name, FileRecord())

    def _take_found(self) -> list[Change]:
        found, self._found = self._found, []
        return found

    def _notice(self, found: Mapping[str, os.stat_result | None], *, to_end: bool = False) -> None:
        """Record local changes of these files, up to the first file that is being written.

        Also record removals before that write, as the file may be written all the time.
        """
        drafts, end_ns = [], None
        for name, status in found.items():
            if end_ns is not None and (status or not self._tree.is_gone_before(name, end_ns)):
                continue
            with self._tree.skipping(name):
                path, record = self._root / name, self._record(name)
                draft = read_draft(path, name, record, self._objects, status, to_end=to_end)
                if draft is not None:
                    drafts.append(draft)
                elif status is not None:
                    end_ns = status.st_ctime_ns
        for draft in self._upload(drafts):
            self._learn(draft)

    def _learn(self, draft: Draft) -> None:
        record = self._record(draft.name)
        if record.learn(draft):
            change = self._made(draft)
            self._found.append(change)
            if not self._is_hub:
                record.pending.append(change)

    def _upload(self, drafts: list[Draft]) -> list[Draft]:
        """Upload large files; return the drafts before the first outdated one.

        Also return removals before that one.
        """
        now = time.monotonic()
        files = {
            part.digest: draft
            for draft in drafts
            if draft.is_upload
            for part in draft.parts or ()
            if now - self._uploaded.get(part.digest, -_UPLOADED_S) >= _UPLOADED_S
        }
        self._store.upload(
            {self._objects.name(digest): self._root / each.name for digest, each in files.items()}
        )
        # A file that was changed or replaced before it was uploaded has other content.
        bad = {
            digest
            for digest, draft in files.items()
            if (status := status_of(self._root / draft.name)) is None
            or Fingerprint.of(status) != draft.seen
        }
        self._store.delete(map(self._objects.name, bad))
        self._uploaded.update(dict.fromkeys(files.keys() - bad, now))
        return list(self._current(drafts, bad))

    def _current(self, drafts: Iterable[Draft], bad: set[str]) -> Iterator[Draft]:
        """Yield drafts before the first with outdated content, and earlier removals."""
        end_ns = None
        for draft in drafts:
            if end_ns is None and draft.seen and any(p.digest in bad for p in draft.parts or ()):
                end_ns = draft.seen.ctime_ns
            if end_ns is None or (not draft.seen and self._tree.is_gone_before(draft.name, end_ns)):
                yield draft

    def _made(self, draft: Draft) -> Change:
        self._serial += 1
        mode = draft.seen.mode if draft.seen else 0
        is_append = draft.grown_from is not None
        return Change(draft.name, draft.parts, mode, is_append, self.author, self._serial)

    def _append(self, path: Path, record: FileRecord, change: Change) -> None:
        """Append to a file, to which this process's programs may append at the same time."""
        data = b"".join(map(self._objects.read, change.parts or ()))
        if not data:
            return
        known = record.size
        new = append_to(path, data, lines=has_lines(change.name))
        if new.start > known:
            with path.open("rb") as file:
                late = os.pread(file.fileno(), new.start - known, known)
            parts, before = (self._objects.add(late),), replace(new.seen, size=new.start)
            record.sha.update(late)
            self._learn(Draft(change.name, parts, before, known, sha=record.sha))
        record.sha.update(data)
        record.seen, record.content, record.tail = new.seen, None, new.tail

    def _replace(self, path: Path, change: Change, own: Sequence[Part] = ()) -> FileRecord:
        """Write a file with a change's content and own content after it, or remove it."""
        before = self._record(change.name)
        record = FileRecord(version=before.version, pending=before.pending)
        if change.parts is None and not own:
            self._tree.remove(path)
        else:
            parts = (*(change.parts or ()), *own)
            aside = path.with_name(aside_name(path.name))
            try:
                self._tree.make_way(path)
                aside.touch()  # errors of the download would be those of the bucket
                self._write(aside, parts)
                aside.chmod(change.mode or 0o644)
                record.adopt(aside, change.name, parts)
                aside.replace(path)
                record.adopt_renamed(status_of(path))
            finally:
                with contextlib.suppress(OSError):
                    aside.unlink(missing_ok=True)
        if own:
            record.own = [(record.size - sum(part.size for part in own), record.size)]
        self._records[change.name] = record
        return record

    def _write(self, path: Path, parts: Sequence[Part]) -> None:
        if len(parts) == 1 and parts[0].data is None:
            name = self._objects.name(parts[0].digest)
            blob = self._store.stat(name)
            if blob is None:
                raise damaged(parts[0])
            self._store.download({name: path}, {name: blob})
            if not has_content(path, parts):
                raise damaged(parts[0])
            return
        with path.open("wb") as file:
            for part in parts:
                file.write(self._objects.read(part))

    def _is_newer(self, name: str, index: Index) -> bool:
        """Whether this process has an own change of a file that the index lacks."""
        record, theirs = self._records[name], index.files.get(name)
        if self._is_hub or not (
            record.pending or ((record.is_own or record.own) and index.lacks(record.version))
        ):
            return False
        if theirs is None or has_lines(name) or theirs.author == self.author:
            return True
        return theirs.version <= record.version

    def _take(self, change: Change) -> None:
        """Replace a file by that of an index."""
        with self._tree.skipping(change.name):
            path, parts = self._root / change.name, change.parts or ()
            status = status_of(path)
            if self._tree.is_link(change.name):
                self._record(change.name).forget()
            elif (
                status is None
                or Fingerprint.of(status).mode != change.mode
                or not has_content(path, parts)
            ):
                self._replace(path, change)
            else:
                self._record(change.name).adopt(path, change.name, parts)
        record = self._record(change.name)
        record.version, record.pending = change.version, []
        record.is_own = change.author == self.author

    def _resent(self, name: str, theirs: Change | None) -> Change | None:
        """Return a local change to send again, unless the index has its result."""
        record, path = self._records[name], self._root / name
        if self._tree.is_link(name):
            return None
        if record.seen is None:
            return None if theirs is None else self._made(Draft(name))
        if has_lines(name):
            return self._merge_lines(path, record, theirs or Change(name, ()))
        if theirs and theirs.mode == record.seen.mode and has_content(path, theirs.parts or ()):
            return None
        draft = read_draft(path, name, record, self._objects, status_of(path), whole=True)
        drafts = self._upload([draft] if draft is not None else [])
        if not drafts:
            record.content, record.is_racy = None, True  # it changes now: for the next scan
            return None
        record.learn(drafts[0])
        return self._made(drafts[0])

    def _merge_lines(self, path: Path, record: FileRecord, theirs: Change) -> Change | None:
        """Replace a file by that of the index, followed by local lines that it lacks."""
        parts = list(theirs.parts or ())
        with path.open("rb") as file:
            count = matching(file, parts)
            offset = sum(part.size for part in parts[:count])
            known = os.pread(file.fileno(), record.size - offset, offset)
            last = tail_of(file, offset)[-1:]
        prefix = [(start, min(end, offset)) for start, end in record.own if start < offset]
        ranges = [(max(start, offset), end) for start, end in record.own if end > offset]
        rest = b"".join(map(self._objects.read, parts[count:]))
        if not rest and sum(end - start for start, end in ranges) == len(known):
            missing = known  # the file is right as it is, also with an incomplete last line
        else:
            own = [known[start - offset : end - offset] for start, end in ranges]
            missing, arrived = missing_lines(own, known, rest)
            if missing and (rest or last)[-1:] not in {b"", b"\n"}:
                missing = b"\n" + missing
            prefix += [(offset + start, offset + end) for start, end in arrived]
        added = (self._objects.add(missing),) if missing else ()
        if missing != known or rest:
            record = self._replace(path, theirs, added)
            record.own = [*prefix, *record.own]
        record.version = theirs.version
        if not missing:
            return None
        draft = Draft(theirs.name, added, record.seen, record.size - len(missing))
        return self._made(draft)


def _content(changes: Iterable[Change]) -> tuple[Part, ...]:
    return tuple(part for change in changes for part in change.parts or ())

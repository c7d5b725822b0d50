"""The shared files of one process: their names, and problems with single files."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from timonel.engines.kubernetes.files.changes import DamagedObjectError
from timonel.engines.kubernetes.files.records import FileRecord, is_rewritten, status_of
from timonel.errors import NotFoundError, TimonelError
from timonel.storage.atomic import unwritable

# Of runs. In the folder of a job, programs may use all names: pods have their own files elsewhere.
_LOCAL = frozenset({"mirrors"})
# Lack of a resource stops all files, and may end.
_EXHAUSTED = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
_LINK = "it is a symbolic link; write a copy of the file"

logger = logging.getLogger(__name__)


class SharedTree:
    """Shared folders in a process's copy of the workspace.

    Args:
        folders: The shared folders, relative to it.
    """

    def __init__(self, root: Path, folders: Sequence[str]) -> None:
        self.root = root
        self._folders = tuple(folders)
        self._unreadable: set[str] = set()
        # Removed files, with the latest time stamp of all files when that was found.
        self._gone: dict[str, int] = {}
        self._warnings: dict[str, str] = {}

    def files(self) -> Iterator[tuple[str, os.stat_result]]:
        """Yield the names of shared files, and their statuses."""
        self._unreadable.clear()
        left = list(self._folders)
        while left:
            folder = left.pop()
            try:
                with os.scandir(self.root / folder) as entries:
                    for entry in entries:
                        name = f"{folder}/{entry.name}"
                        if not self._is_shared(name):
                            continue
                        if entry.is_dir(follow_symlinks=False):
                            left.append(name)
                        elif (status := status_of(Path(entry.path))) is not None:
                            yield name, status
                        elif entry.is_symlink():
                            self.warn(name, _LINK)
            except (FileNotFoundError, NotADirectoryError):
                continue  # removed meanwhile
            except OSError as error:
                self._unreadable.add(folder)
                self.skip(folder, error)

    def find(self, records: Mapping[str, FileRecord]) -> dict[str, os.stat_result | None]:
        """Return changed files, in the order of writing, and removed ones.

        Files that are below a symbolic link now are forgotten: they are not removed.
        """
        files = dict(self.files())
        changed = [name for name, status in files.items() if not _is_known(records, name, status)]
        gone = []
        for name, record in records.items():
            if record.seen and name not in files and self._is_readable(name):
                if self.is_link(name):
                    record.forget()
                else:
                    gone.append(name)
        if not changed and not gone:
            self._gone.clear()
            return {}
        # Written while files were listed, in a folder that was listed before: what has been found
        # may be later than that.
        again = dict(self.files())
        late = {
            name: status
            for name, status in again.items()
            if not _is_known(records, name, status)
            and (name not in files or is_rewritten(name, files[name], status))
        }
        latest = max((each.st_ctime_ns for each in (*files.values(), *again.values())), default=0)
        self._gone = {name: self._gone.get(name, latest) for name in gone}
        if late:
            end = min(status.st_ctime_ns for status in late.values())
            changed = [n for n in changed if n not in late and files[n].st_ctime_ns < end]
            gone = [name for name in gone if self.is_gone_before(name, end)]
        # Not by the time of writing only: a file may be written aside, and appear later.
        changed.sort(key=lambda n: (files[n].st_ctime_ns, files[n].st_mtime_ns, files[n].st_ino))
        return {**{name: files[name] for name in changed}, **dict.fromkeys(gone)}

    def is_gone_before(self, name: str, ctime_ns: int) -> bool:
        """Whether `find` found that a file was removed before another one was written."""
        return self._gone.get(name, ctime_ns) < ctime_ns

    def is_link(self, name: str) -> bool:
        """Whether a file is a symbolic link or below one; log it if so.

        What it leads to may be outside the shared folders, or shared by another name.
        """
        folder = next(each for each in self._folders if name.startswith(f"{each}/"))
        path = self.root / folder
        for part in Path(name).relative_to(folder).parts:
            path /= part
            if os.path.islink(path):  # noqa: PTH114 - no error
                self.warn(path.relative_to(self.root).as_posix(), _LINK)
                return True
        return False

    def _is_readable(self, name: str) -> bool:
        """Whether the last call of `files` could list the folders of a name."""
        return not any(name.startswith(f"{folder}/") for folder in self._unreadable)

    def accepts(self, name: str) -> bool:
        """Whether other processes may change a file; log it if not."""
        if not self._is_shared(name):
            self.warn(name, "it is not in a shared folder of the job")
        return self._is_shared(name)

    def make_way(self, path: Path) -> None:
        """Create the parent folder; remove a file in its place, or a folder at the path."""
        for parent in reversed(path.relative_to(self.root).parents[:-1]):
            if status_of(self.root / parent) is not None:
                (self.root / parent).unlink(missing_ok=True)
        self._gone.pop(path.relative_to(self.root).as_posix(), None)
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)

    def remove(self, path: Path) -> None:
        """Remove a file and empty parent folders, but no symbolic link or file below one."""
        if self.is_link(path.relative_to(self.root).as_posix()):
            return
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
            path.unlink()
        kept = {self.root / folder for folder in self._folders}
        for parent in path.parents:
            if parent in kept:
                return
            try:
                parent.rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                return  # not empty

    @contextlib.contextmanager
    def skipping(self, name: str) -> Iterator[None]:
        """Log errors of this file only, and go on with the others."""
        try:
            yield
        except (OSError, TimonelError) as error:
            self.skip(name, error)

    def skip(self, name: str, error: OSError | TimonelError) -> None:
        """Log once that a file is not shared, or raise an error that concerns other files too."""
        if not isinstance(error, OSError):
            if not isinstance(error, DamagedObjectError | NotFoundError):
                raise error
            self.warn(name, f"{error}")
        elif error.errno in _EXHAUSTED:
            raise unwritable(self.root / name, error) from error
        else:
            self.warn(name, error.strerror or f"{error}")

    def warn(self, name: str, reason: str) -> None:
        """Log why a file is not shared, once."""
        if self._warnings.get(name) != reason:
            self._warnings[name] = reason
            logger.warning("not sharing '%s': %s", name, reason)

    def _is_shared(self, name: str) -> bool:
        """Whether a name is in a shared folder, and not local to one process."""
        for folder in self._folders:
            if name.startswith(f"{folder}/"):
                parts = name.removeprefix(f"{folder}/").split("/")
                local = frozenset() if folder.startswith("jobs/") else _LOCAL
                # Hidden: temporary files, locks.
                is_local = any(not part or part.startswith(".") for part in parts)
                return not is_local and "\0" not in name and parts[0] not in local
        return False


def _is_known(records: Mapping[str, FileRecord], name: str, status: os.stat_result) -> bool:
    return (record := records.get(name)) is not None and record.is_known(status)

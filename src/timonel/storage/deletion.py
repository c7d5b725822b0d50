"""Delete folders of a workspace or repository; an interrupted deletion is completed later.

<root>/.deletions/<id>.json   what a deletion removes, written before it begins

All folders are renamed aside before the first is removed, so readers see all or none of each. A
killed process leaves its document: `find_workspace` and the next deletion complete it. Symbolic
links are removed, never followed, and nothing outside of the root is touched.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from timonel.errors import InputError, SpecError, TimonelError
from timonel.storage.atomic import ASIDE_PREFIX, sync, unwritable
from timonel.storage.documents import read_document, write_document
from timonel.storage.locks import LockedError, exclusive

if TYPE_CHECKING:
    from timonel.storage.object_store import ObjectStore

FOLDER = ".deletions"
_KIND = "deletion"
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Objects:
    """Objects of a bucket to delete.

    Args:
        first: Names in it that are deleted first: without them, nobody takes it for complete.
        mark: Object that remembers the deletion, as other machines have copies; None for none.
    """

    folder: str
    first: tuple[str, ...] = ()
    mark: str | None = None


@dataclass(frozen=True)
class Deletion:
    """Deletes folders and files below a root. Safe to use from several processes at once.

    Args:
        store: The bucket's objects, if it is in a bucket.
    """

    root: Path
    store: ObjectStore | None = None

    def delete(self, paths: Iterable[Path], objects: Sequence[Objects] = ()) -> None:
        """Delete paths and objects; missing ones are ignored."""
        self.resume()
        found = [path for path in dict.fromkeys(paths) if os.path.lexists(path)]
        targets = [{"path": self._relative(path), **_identity(path)} for path in found]
        if not (targets or objects):
            return
        body = {
            "targets": targets,
            "objects": [asdict(each) for each in objects],
            "at": time.time(),
        }
        with exclusive(self._folder / ".lock"):
            path = self._folder / f"{uuid.uuid4().hex}.json"
            write_document(path, _KIND, body)
            self._carry_out(path, body)

    def resume(self) -> None:
        """Complete the deletions of killed processes."""
        if not self._interrupted():
            return
        try:
            with exclusive(self._folder / ".lock", timeout_s=0):
                for path in self._interrupted():
                    try:
                        self._carry_out(path, read_document(path, _KIND))
                    except TimonelError as error:
                        _logger.warning("a deletion is not complete: %s", error)
        except LockedError:
            return  # its process lives
        except InputError as error:  # a workspace that this user may only read
            _logger.warning("a deletion is not complete: %s", error)

    @property
    def _folder(self) -> Path:
        return self.root / FOLDER

    def _interrupted(self) -> list[Path]:
        return sorted(self._folder.glob("*.json"))

    def _carry_out(self, document: Path, body: dict[str, Any]) -> None:
        for each in body["objects"] if self.store is not None else ():
            self._delete_objects(Objects(**{**each, "first": tuple(each["first"])}))
        asides = []
        for index, target in enumerate(body["targets"]):
            path = self.root / target["path"]
            self._relative(path)
            aside = path.with_name(f"{ASIDE_PREFIX}deleted-{document.stem}-{index}")
            asides.append(aside)
            # What was created again under this name since is another folder.
            if os.path.lexists(path) and _identity(path).items() <= target.items():
                try:
                    path.rename(aside)
                    sync(path.parent)
                except OSError as error:
                    raise unwritable(path, error) from error
        for aside in asides:
            _remove(aside)
        document.unlink(missing_ok=True)

    def _delete_objects(self, each: Objects) -> None:
        assert self.store is not None
        if each.mark is not None:
            self.store.write(each.mark, b"")
        first = [f"{each.folder}/{name}" for name in each.first]
        names = sorted(self.store.find(each.folder), key=lambda name: (name not in first, name))
        self.store.delete(name for name in names if name != each.mark)

    def _relative(self, path: Path) -> str:
        """Return a path relative to the root."""
        absolute = Path(os.path.abspath(path))  # noqa: PTH100 - keeps a link at the end
        parent = absolute.parent.resolve()
        if not absolute.is_relative_to(self.root.absolute()) or not parent.is_relative_to(
            self.root.resolve()
        ):
            raise SpecError(
                f"{path} is not in {self.root}: it is not deleted", hint="delete it by hand"
            )
        return str(absolute.relative_to(self.root.absolute()))


def size_of(path: Path) -> int:
    """Return the bytes of a file, or of all files below a folder; links are not followed."""
    if path.is_symlink() or not path.is_dir():
        return path.lstat().st_size if os.path.lexists(path) else 0
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_size  # noqa: PTH118
            except OSError:  # removed meanwhile
                continue
    return total


def _identity(path: Path) -> dict[str, int]:
    status = path.lstat()
    return {"inode": status.st_ino, "device": status.st_dev}


def _remove(path: Path) -> None:
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(
            f"cannot remove {error.filename or path}: {error.strerror or error}",
            hint="allow it: the next command removes the rest",
        ) from error

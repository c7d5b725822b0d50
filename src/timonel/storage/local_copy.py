"""Local copy of a workspace in a bucket.

Objects have the names that the files have in the copy, with these rules:

FORMAT, datasets/                 documents, replaced as a whole
runs/                             see `timonel.storage.run_transfer`
studies/                          see `timonel.tuning.transfer`
models/<name>/.numbers/<n>        reserves a number, by a conditional request
models/<name>/<n>/                written once; the file that makes it a model comes last
jobs/<run>/export/                likewise, its document last
jobs/<run>/checkpoints/           copied by the job's chief while it trains

The rest of ``jobs/``, ``servers/`` and ``services/`` belong to this machine.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import tempfile
import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from timonel.errors import AlreadyExistsError, NotFoundError
from timonel.storage.atomic import aside_name, publish_dir, sweep, write_text
from timonel.storage.blobs import Blob
from timonel.storage.deletion import Objects
from timonel.storage.object_store import ObjectStore, local_files
from timonel.storage.remote import push
from timonel.storage.run_transfer import RunTransfer

# One of these makes a folder complete; of an export with a model, the document.
_LAST = ("saved_model.pb", "saved_model.pbtxt", "model.tflite", "model.py", "export.json")
_RESERVED = ".reserved"


def cache_folder() -> Path:
    """Return the user's cache folder of timonel."""
    try:
        parent = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # a user without a home, as in containers
        parent = Path(tempfile.gettempdir()) / f"cache-{os.getuid()}"
    return parent / "timonel"


def copy_folder(uri: str, workspace_id: str) -> Path:
    """Return the folder of the local copy of a workspace.

    Buckets of two servers may have the same URI, and a deleted workspace may be created again.
    """
    return cache_folder() / "workspaces" / f"{_folder_prefix(uri)}-{workspace_id}"


def copy_folders(uri: str) -> list[Path]:
    """Return the folders of existing copies of all workspaces at a URI."""
    return [
        path.parent
        for path in (cache_folder() / "workspaces").glob(f"{_folder_prefix(uri)}-*/FORMAT")
    ]


def _folder_prefix(uri: str) -> str:
    name = re.sub(r"[^A-Za-z0-9._-]", "_", uri.rpartition("/")[2])[:64]
    return f"{name}-{hashlib.sha256(uri.encode()).hexdigest()[:16]}"


class LocalCopy:
    """Transfers between a workspace in a bucket and its local copy.

    Safe to use from several processes of one machine at once.

    Args:
        store: The bucket's objects below the workspace's URI.
    """

    def __init__(self, store: ObjectStore, root: Path) -> None:
        self.store = store
        self.root = root
        self.runs = RunTransfer(store, root)

    def push_file(self, path: Path) -> None:
        """Write a document of the copy to the bucket, replacing an earlier one."""
        self.store.write(self._key(path), path.read_bytes())

    def push_folder(self, source: Path, target: Path, *, replace: bool = False) -> None:
        """Upload a complete folder; the file that makes it complete comes last.

        Repeating an interrupted upload transfers only what is missing.

        Args:
            target: The folder's place in the copy.
        """
        last = _completing(local_files(source))
        if last is None:
            raise NotFoundError(f"{source} holds no model")
        push(self.store, self._key(target), source, last=last, replace=replace)

    def pull_folder(self, target: Path) -> None:
        """Download a complete folder, all or nothing, unless the copy has the same one.

        Without a complete folder in the bucket, the copy keeps its own.
        """
        self._pull_folder(target, self.store.find(self._key(target)))

    def objects(self, target: Path) -> Objects:
        """Return the objects of a complete folder, to delete."""
        return Objects(self._key(target), _LAST)

    def pull_models(self, name: str | None = None) -> None:
        """Bring the versions of a model up to date, or of all."""
        # Listed first: a version that is published meanwhile is neither old nor gone.
        local = set((self.root / "models").glob(f"{name or '*'}/[0-9]*"))
        versions: dict[Path, dict[str, Blob]] = defaultdict(dict)
        for key, blob in self.store.find(f"models/{name}" if name else "models").items():
            parts = key.split("/")
            if len(parts) > 3 and parts[2].isdigit():
                versions[self.root.joinpath(*parts[:3])][key] = blob
        kept = {path for path, blobs in versions.items() if self._pull_folder(path, blobs)}
        for gone in local - kept:
            aside = gone.with_name(aside_name(gone.name))
            with contextlib.suppress(OSError):  # another process removes it
                gone.rename(aside)
            shutil.rmtree(aside, ignore_errors=True)

    def reserve_number(self, model: str, first: int) -> int:
        """Reserve the lowest unused number of a version from ``first``, and return it.

        Deletes what an interrupted publication of this machine left in the bucket. The caller holds
        the model's lock.
        """
        mark = self.root / "models" / model / _RESERVED
        if mark.is_file():
            self._delete_incomplete(mark.with_name(mark.read_text().strip()))
        number = first
        while not self._reserve(f"models/{model}/.numbers/{number}"):
            number += 1
        write_text(mark, f"{number}\n")
        return number

    def _reserve(self, key: str) -> bool:
        try:
            self.store.create(key, uuid.uuid4().hex.encode())
        except AlreadyExistsError:
            return False
        return True

    def _delete_incomplete(self, target: Path) -> None:
        key = self._key(target)
        blobs = self.store.find(key)
        if _completing(name.removeprefix(f"{key}/") for name in blobs) is None:
            self.store.delete(sorted(blobs))

    def _pull_folder(self, target: Path, blobs: Mapping[str, Blob]) -> bool:
        """Return whether the bucket has the folder complete."""
        key = self._key(target)
        last = _completing(name.removeprefix(f"{key}/") for name in blobs)
        if last is None:
            return False
        path = target / last
        if path.is_file() and self.store.is_same(f"{key}/{last}", path, blobs[f"{key}/{last}"]):
            return True
        sweep(target.parent)
        # Another process may download it at the same time.
        with publish_dir(target, replace=True) as aside:
            paths = {name: aside / name.removeprefix(f"{key}/") for name in blobs}
            self.store.download(paths, blobs)
        return True

    def _key(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()


def _completing(names: Iterable[str]) -> str | None:
    """Return which of a folder's files makes it complete; None if it is not."""
    return max((name for name in names if name in _LAST), key=_LAST.index, default=None)

"""Studies of a workspace in a bucket, and in the local copy.

studies/<name>/study.json                   the settings: created by a conditional request
studies/<name>/journal/<id>/<offset>.jsonl  a part of ``journal.log``, named by its first byte; none
                                            with a database
studies/<name>/controllers/<n>.json         see `timonel.tuning.lease`
studies/<name>/stop                         request to stop the study

The bucket has every trial before its job starts, and its journal counts: a machine that continues a
study drops what its own journal has beyond that.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from timonel.errors import NotFoundError
from timonel.storage import exclusive, is_held, write_bytes
from timonel.storage.growing_file import DivergedError, GrowingFile
from timonel.storage.object_store import ObjectStore
from timonel.tuning.lease import ControllerLease
from timonel.tuning.storage import JOURNAL

SETTINGS = "study.json"
_PULL_LOCK = ".pull.lock"


class StudyTransfer:
    """Transfers of a study between the bucket and the local copy of its workspace.

    Safe to use from several processes of one machine at once.

    Args:
        store: The bucket's objects below the workspace's URI.
        folder: The study's folder in the local copy.
        journal_id: ID of the study's journal.
    """

    def __init__(self, store: ObjectStore, folder: Path, journal_id: str) -> None:
        self._store = store
        self._folder = folder
        self._objects = f"studies/{folder.name}"
        place = f"{self._objects}/journal/{journal_id}"
        self._journal = GrowingFile(store, place, folder / JOURNAL)
        self._journal_place = place
        self.lease = ControllerLease(store, folder, self._pull_stop)

    def create(self) -> None:
        """Upload a new study: its journal, if it has one, then its settings."""
        if self._journal.path.exists():
            self._journal.push({})
        content = (self._folder / SETTINGS).read_bytes()
        self._store.create(f"{self._objects}/{SETTINGS}", content)

    def push_settings(self) -> None:
        """Upload the settings, which replace earlier ones."""
        content = (self._folder / SETTINGS).read_bytes()
        self._store.write(f"{self._objects}/{SETTINGS}", content)

    def push_journal(self) -> None:
        """Upload what the journal has gained; for the controller."""
        try:
            self._journal.push(self._store.find(self._journal_place))
        except DivergedError:
            self.lease.check()
            raise

    def pull_journal(self, *, is_controller: bool, lock: Path) -> bool:
        """Make the journal equal to the bucket's; return whether it did not begin like that.

        While a controller of this machine runs, its journal is newer, so others leave it.

        Args:
            is_controller: Whether the caller holds the study's lock.
            lock: The study's lock file.
        """
        with exclusive(self._folder / _PULL_LOCK):
            if not is_controller and is_held(lock):
                return False
            return self._journal.pull(self._store.find(self._journal_place))

    def request_stop(self) -> None:
        """Ask the controller to stop, wherever it runs."""
        self._store.write(f"{self._objects}/stop", b"")

    def clear_stop(self) -> None:
        """Remove a request to stop."""
        self._store.delete([f"{self._objects}/stop"])

    def _pull_stop(self) -> None:
        with contextlib.suppress(NotFoundError):
            self._store.read(f"{self._objects}/stop")
            (self._folder / "stop").touch()


def pull_settings(store: ObjectStore, studies: Path, name: str) -> None:
    """Bring the settings of a study up to date in the local copy."""
    content = store.read(f"studies/{name}/{SETTINGS}")
    path = studies / name / SETTINGS
    if not path.is_file() or path.read_bytes() != content:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, content)


def names(store: ObjectStore) -> list[str]:
    """Return the names of the studies in a bucket, and of folders that may be none."""
    return store.folders("studies")

"""Copy checkpoints to a folder or bucket elsewhere, to survive the machine's loss.

A separate thread copies: a bucket that hangs delays neither training nor local checkpoints. It
mirrors the local folder: the newest checkpoint is copied first, and deleted checkpoints are removed
after all others are copied.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from timonel.errors import TimonelError
from timonel.storage import is_local, join, remote
from timonel.storage.atomic import aside_dir
from timonel.storage.object_store import ObjectStore
from timonel.training import checkpoints

logger = logging.getLogger(__name__)

_LONG_S = 30.0
"""Seconds after which a slow copy is logged, when the next copy is due."""
PATIENCE_S = 60.0
"""Least timeout of copies at the end of a call; it is at least ten times the longest copy."""


class Copies:
    """Copies a job's checkpoints to ``uri``, unless it is None. Used from several threads."""

    def __init__(self, uri: str | None, *, patience_s: float = PATIENCE_S) -> None:
        self._uri = uri
        self._patience_s = patience_s
        self._changed = threading.Condition()
        self._wanted: dict[Path, list[Path]] = {}
        self._copied: set[Path] = set()
        self._thread: threading.Thread | None = None
        self._begun: float | None = None
        self._is_given_up = False

    def add(self, kept: Sequence[Path]) -> None:
        """Mirror the kept checkpoints, the newest first, in the background; return at once."""
        # An unreachable bucket does not end a job that has everything on its disk: the error is
        # logged, and the next checkpoint retries.
        if self._uri is None or not kept:
            return
        with self._changed:
            self._copied.discard(kept[0])
            self._wanted[kept[0].parent] = list(kept)
            if self._begun is not None and time.monotonic() - self._begun > _LONG_S:
                took_s = time.monotonic() - self._begun
                logger.warning(
                    "Copying to %s has taken %.0f s so far. Training continues.", self._uri, took_s
                )
            if self._thread is None:
                # Daemon: a bucket that hangs must not keep the process from exiting.
                self._thread = threading.Thread(
                    target=self._run, name="timonel-copies", daemon=True
                )
                self._thread.start()

    def wait(self, at_most_s: float | None = None) -> None:
        """Wait until all is copied or failed; log a timeout."""
        begun = time.monotonic()
        with self._changed:
            limit_s = self._patience_s if at_most_s is None else at_most_s
            if self._is_given_up:
                limit_s = 0.0
            was_given_up, self._is_given_up = self._is_given_up, True  # or by a second SIGTERM
            if self._changed.wait_for(lambda: self._thread is None, limit_s):
                self._is_given_up = False
            elif not was_given_up:
                took_s = time.monotonic() - begun
                logger.warning(
                    "The newest checkpoint was not copied to %s within %.0f s.", self._uri, took_s
                )

    def fetch(self, root: Path) -> None:
        """Fetch all copies into ``root``, all or nothing; none of them may exist there."""
        if self._uri is None:
            return
        paths = [name.split("/") for name in sorted(ObjectStore(self._uri).find())]
        found = ["/".join(path[:-1]) for path in paths if _is_checkpoint(path)]
        if not found:
            return
        with aside_dir(root) as aside:
            for place in found:
                remote.fetch(join(self._uri, place), aside / place)
            for place in found:
                (root / place).parent.mkdir(parents=True, exist_ok=True)
                (aside / place).rename(root / place)
        logger.info("Fetched %d checkpoints from %s.", len(found), self._uri)

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._wanted:
                    self._thread = self._begun = None
                    self._changed.notify_all()
                    return
                call, kept = self._wanted.popitem()
                self._begun = time.monotonic()
            try:
                self._bring(call, kept)
            except (TimonelError, OSError) as error:
                logger.warning("Could not copy %s. Training continues. %s", kept[0].name, error)

    def _bring(self, call: Path, kept: Sequence[Path]) -> None:
        for folder in kept:
            if folder not in self._copied and not self._is_there(folder):
                begun = time.monotonic()
                self._copy(folder)
                self._patience_s = max(self._patience_s, 10 * (time.monotonic() - begun))
            self._copied.add(folder)
            if call in self._wanted:
                return  # a newer checkpoint comes first
        names = {folder.name for folder in kept}
        for old in self._names_of(call) - names:
            self._remove(call / old)
            self._copied.discard(call / old)

    def _copy(self, folder: Path) -> None:
        place = self._place(folder)
        try:
            remote.publish(folder, place, last=checkpoints.STATE, replace=True)
        except (TimonelError, OSError):
            if folder.is_dir():
                raise
            # The checkpoint was deleted in the meantime.

    def _is_there(self, folder: Path) -> bool:
        """Whether an earlier process has copied this checkpoint."""
        with contextlib.suppress(TimonelError):  # copying will report any error
            found = ObjectStore(self._place(folder)).read(checkpoints.STATE)
            return found == (folder / checkpoints.STATE).read_bytes()
        return False

    def _names_of(self, call: Path) -> set[str]:
        with contextlib.suppress(TimonelError):  # leftovers do no harm
            names = ObjectStore(join(str(self._uri), call.name)).folders("")
            return set(filter(checkpoints.is_name, names))
        return set()

    def _remove(self, folder: Path) -> None:
        store = ObjectStore(self._place(folder))
        with contextlib.suppress(TimonelError):  # leftovers are old, and do no harm
            store.delete([checkpoints.STATE, *store.find()])
        if is_local(store.uri):
            shutil.rmtree(store.uri, ignore_errors=True)

    def _place(self, folder: Path) -> str:
        return join(str(self._uri), folder.parent.name, folder.name)


def _is_checkpoint(path: Sequence[str]) -> bool:
    whole = len(path) >= 3 and path[-1] == checkpoints.STATE
    return whole and path[-3].startswith("fit-") and checkpoints.is_name(path[-2])

"""Copies of checkpoints in a folder or bucket, for a machine that has none."""

from __future__ import annotations

import contextlib
import logging
import posixpath
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from timonel.errors import InputError, NotFoundError, TimonelError
from timonel.storage import is_local, join, local_path, publish_dir, remote
from timonel.storage.uris import filesystem
from timonel.training.worker.state import files

logger = logging.getLogger(__name__)

_ATTEMPTS = 3
_PAUSE_S = 1.0


class Copies:
    """Copies of a job's checkpoints under ``uri``; without one, nothing is copied.

    Args:
        uri: A folder or bucket, laid out as the job's own ``checkpoints``.
    """

    def __init__(self, uri: str | None) -> None:
        self._uri = uri

    def add(self, folder: Path, removed: Sequence[Path] = ()) -> None:
        """Copy a checkpoint, and remove the copies of those that are not kept any more.

        A bucket that cannot be reached does not end a job whose own disk has everything: that is
        logged, and the next checkpoint is tried again.
        """
        if self._uri is None:
            return
        place = self._place(folder)
        if is_local(place):
            local_path(place).mkdir(parents=True, exist_ok=True)
        try:
            _retried(lambda: remote.publish(folder, place, last=files.STATE, replace=True))
        except TimonelError as error:
            logger.warning("%s is not copied: %s", folder.name, error)
            return
        for old in removed:
            self._remove(old)

    def fetch(self, root: Path) -> None:
        """Fetch all copies into ``root``.

        Raises:
            InputError: They cannot be read.
        """
        if self._uri is None:
            return
        fs, place = filesystem(self._uri)
        fs.invalidate_cache()
        found = [path for path in _listing(fs, place) if _is_checkpoint(path)]
        for path in found:
            fit, name, _ = path.rsplit("/", 2)[-3:]
            uri = join(self._uri, posixpath.basename(fit), name)
            with publish_dir(root / posixpath.basename(fit) / name, replace=True) as aside:
                aside.rmdir()
                remote.fetch(uri, aside)
        if found:
            logger.info("%d checkpoints were fetched from %s", len(found), self._uri)

    def _remove(self, folder: Path) -> None:
        fs, place = filesystem(self._place(folder))
        with contextlib.suppress(Exception):  # what is left over there is old, and does no harm
            fs.rm_file(posixpath.join(place, files.STATE))
            fs.rm(place, recursive=True)

    def _place(self, folder: Path) -> str:
        assert self._uri is not None
        return join(self._uri, folder.parent.name, folder.name)


def _listing(fs: object, place: str) -> list[str]:
    try:
        return sorted(fs.find(place))  # type: ignore[attr-defined] # fsspec has no types
    except FileNotFoundError:
        return []
    except Exception as error:
        raise InputError(
            f"expected to read {place}, got {type(error).__name__}: {error}"
        ) from error


def _is_checkpoint(path: str) -> bool:
    parts = path.split("/")
    whole = len(parts) >= 3 and parts[-1] == files.STATE
    return whole and parts[-3].startswith("fit-") and files.is_name(parts[-2])


def _retried(work: Callable[[], None]) -> None:
    for attempt in range(_ATTEMPTS - 1):
        try:
            work()
        except NotFoundError:
            raise
        except InputError:
            time.sleep(_PAUSE_S * 2**attempt)
        else:
            return
    work()

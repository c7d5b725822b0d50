"""Lease of the process that runs a study in a bucket: one controller at a time, of all machines.

controllers/<n>.json in the study's folder belongs to the n-th controller, which changes it every
10 s while it lives. The next controller creates the next number by a conditional request, once the
latest has ended or has not changed for a minute by the next one's own clock. A controller that was
cut off meanwhile finds that number, and leaves the study alone.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from timonel.errors import AlreadyExistsError, JobError, NotFoundError, SpecError, TimonelError
from timonel.storage import write_text
from timonel.storage.documents import document, parse_document
from timonel.storage.object_store import ObjectStore

RENEW_S = 10.0
SILENT_S = 60.0
"""Time without a change after which a controller of another machine counts as dead."""
_LOOK_S = 1.0
_KIND = "study-controller"
_NUMBER = re.compile(r"(\d{6})\.json")
_OWN = ".controller"
_logger = logging.getLogger(__name__)


class LostStudyError(JobError):
    """Another machine runs the study now."""


class ControllerLease:
    """The lease of a study.

    Only `is_lost` may be read while another thread calls a method.

    Args:
        store: The bucket's objects below the workspace's URI.
        folder: The study's folder in the local copy.
        tick: Called after each renewal, in the renewing thread.
    """

    def __init__(self, store: ObjectStore, folder: Path, tick: Callable[[], None]) -> None:
        self._is_superseded = False
        self._renewed_at = time.monotonic()
        self._store = store
        self._study = folder.name
        self._objects = f"studies/{folder.name}/controllers"
        self._own = folder / _OWN
        self._tick = tick
        self._token = uuid.uuid4().hex
        self._number = 0

    @property
    def is_lost(self) -> bool:
        """Whether another controller has the study, or may have: nothing was renewed for long."""
        return self._is_superseded or time.monotonic() - self._renewed_at > SILENT_S

    @property
    def is_alive(self) -> bool:
        """Whether a controller of another machine seems to run, by the clocks of both machines."""
        latest = self._latest()
        if latest is None or latest[1]["is_over"] or self._is_of_this_copy(latest[1]):
            return False
        return bool(time.time() - float(latest[1]["renewed_at"]) < SILENT_S)

    @contextlib.contextmanager
    def held(self, wait: Callable[[float], object] = time.sleep) -> Iterator[None]:
        """Hold the lease during the block. The caller holds the study's lock."""
        self._acquire(wait)
        ended = threading.Event()
        thread = threading.Thread(target=self._renew_until, args=(ended,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            if not self._is_superseded:
                try:
                    self._write(is_over=True)
                except TimonelError as error:
                    _logger.warning("%s", error)

    def check(self) -> None:
        """Check that no other controller has the study."""
        try:
            found = self._read(self._number + 1)
        except NotFoundError:
            return
        self._is_superseded = True
        raise LostStudyError(
            f"the study {self._study} continues on the machine {found['host']}",
            hint=f"follow it with 'timonel studies show {self._study}'",
        )

    def _acquire(self, wait: Callable[[float], object]) -> None:
        latest = self._latest()
        if latest is not None:
            self._check_dead(*latest, wait)
            self._number = latest[0]
        self._number += 1
        write_text(self._own, self._token)
        try:
            self._store.create(self._name(self._number), self._content(is_over=False))
        except AlreadyExistsError:
            raise self._refusal(self._read(self._number)) from None
        self._renewed_at = time.monotonic()

    def _check_dead(
        self, number: int, found: dict[str, Any], wait: Callable[[float], object]
    ) -> None:
        # The holder of the lock in this copy is the caller.
        if found["is_over"] or self._is_of_this_copy(found):
            return
        _logger.warning(
            "watching for %.0f s whether %s still runs the study", SILENT_S, found["host"]
        )
        begun = time.monotonic()
        while time.monotonic() - begun < SILENT_S:
            wait(_LOOK_S)
            if self._read(number) != found:
                raise self._refusal(found)

    def _refusal(self, found: dict[str, Any]) -> SpecError:
        return SpecError(
            f"the machine {found['host']} runs the study {self._study}",
            hint=f"follow it with 'timonel studies show {self._study}', or stop it with "
            f"'timonel studies stop {self._study}'",
        )

    def _is_of_this_copy(self, found: dict[str, Any]) -> bool:
        try:
            return bool(self._own.read_text() == found["token"])
        except OSError:
            return False

    def _renew_until(self, ended: threading.Event) -> None:
        while not ended.wait(RENEW_S):
            try:
                begun = time.monotonic()
                self.check()
                self._write(is_over=False)
                self._renewed_at = begun
                self._tick()
            except LostStudyError:
                return
            except Exception as error:  # noqa: BLE001 - the next round renews again
                _logger.warning("cannot renew the lease of the study %s: %s", self._study, error)

    def _latest(self) -> tuple[int, dict[str, Any]] | None:
        names = self._store.children(self._objects)[1]
        numbers = [int(match[1]) for name in names if (match := _NUMBER.fullmatch(name))]
        return (max(numbers), self._read(max(numbers))) if numbers else None

    def _read(self, number: int) -> dict[str, Any]:
        name = self._name(number)
        content = self._store.read(name).decode(errors="replace")
        return parse_document(content, _KIND, f"{self._store.uri}/{name}")

    def _write(self, *, is_over: bool) -> None:
        self._store.write(self._name(self._number), self._content(is_over=is_over))

    def _content(self, *, is_over: bool) -> bytes:
        body = {
            "host": socket.gethostname(),
            "token": self._token,
            "renewed_at": time.time(),
            "is_over": is_over,
        }
        return json.dumps(document(_KIND, body)).encode()

    def _name(self, number: int) -> str:
        return f"{self._objects}/{number:06}.json"

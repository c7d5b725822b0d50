"""Watches the models' folders and keeps in memory what `versions.plan` says.

One thread owns all state: it looks at the disk, hands loads and unloads to small pools, and takes
their results back from a queue, so a load that takes minutes delays no other model.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from timonel.errors import ServingError
from timonel.serving.config import LoadSettings, ModelSettings
from timonel.serving.disk import Settling, labels_of, version_folders
from timonel.serving.runtimes.base import LoadedModel
from timonel.serving.servables import Catalogue, Servable, describe
from timonel.serving.status import TRANSIENT, Code, StatusError
from timonel.serving.versions import (
    Candidate,
    State,
    Tracked,
    after_failure,
    may_yet_serve,
    of_interest,
    plan,
    statuses,
)

_LOG = logging.getLogger(__name__)
_ENDED_KEPT = 32

Load = Callable[[Path], LoadedModel]


@dataclass
class _Watched:
    """A model and what the loader's thread knows of it."""

    settings: ModelSettings
    settling: Settling
    tracked: dict[int, Tracked] = field(default_factory=dict)
    servables: dict[int, Servable] = field(default_factory=dict)
    complaint: str | None = None
    waiting: bool = True

    @property
    def serves(self) -> bool:
        return bool(self.servables)


class Loader:
    """Loads and unloads versions as they come and go on disk.

    Owns the versions it has loaded. `start`, `wait_until_settled` and `stop` belong to one thread.

    Args:
        models: What to watch.
        load: Loads one version; called from several threads.
        settings: Times and limits.
        catalogue: Where the result is published.
        on_change: Called, from the loader's thread, after a version was loaded or unloaded.
    """

    def __init__(
        self,
        models: Sequence[ModelSettings],
        load: Load,
        settings: LoadSettings,
        catalogue: Catalogue,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._load = load
        self._settings = settings
        self._catalogue = catalogue
        self._on_change = on_change
        self._watched = [
            _Watched(model, Settling(settings.settle_s, time.monotonic)) for model in models
        ]
        self._done: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._loads = ThreadPoolExecutor(settings.threads, thread_name_prefix="load")
        self._unloads = ThreadPoolExecutor(1, thread_name_prefix="unload")
        self._stopping = False
        self._settled = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="loader", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def wait_until_settled(self) -> None:
        """Block until every model serves a version, or one of them has none that it could.

        Raises:
            ServingError: A model has no version that can be loaded.
        """
        self._settled.wait()
        for watched in self._watched:
            if not watched.serves:
                raise _unservable(watched)

    def stop(self) -> None:
        """Stop to watch, and unload everything once its requests have ended."""
        if not self._thread.is_alive():
            return
        self._stopping = True
        self._done.put(lambda: None)
        self._thread.join()
        self._loads.shutdown(cancel_futures=True)
        while not self._done.empty():
            self._done.get()()
        for watched in self._watched:
            self._close_all(watched)
        self._unloads.shutdown()

    def _watch(self) -> None:
        while not self._stopping:
            for watched in self._watched:
                self._look_safely(watched)
            if all(w.serves or not w.waiting for w in self._watched):
                self._settled.set()
            self._take_results(time.monotonic() + self._settings.poll_s)
        self._settled.set()

    def _take_results(self, deadline: float) -> None:
        """Carry out what the pools hand back until it is time to look at the disk again."""
        while (left := deadline - time.monotonic()) > 0:
            try:
                self._done.get(timeout=left)()
            except queue.Empty:
                return
            if self._done.empty():
                return

    def _look_safely(self, watched: _Watched) -> None:
        try:
            self._look(watched)
        except Exception:  # noqa: BLE001 - logged, and tried again
            # The thread must outlive whatever a file system does to it; it looks again soon.
            _LOG.exception("model %s cannot be looked at", watched.settings.name)

    def _look(self, watched: _Watched) -> None:
        try:
            folders = version_folders(Path(watched.settings.base_path))
        except OSError as error:
            self._complain(watched, f"cannot read its folder: {error.strerror}")
            watched.waiting = False
            return
        self._complain(watched, None)
        self._forget(watched, folders)
        policy = watched.settings.policy
        interesting = of_interest(policy, folders, watched.tracked)
        candidates = watched.settling.look(folders, interesting)
        now = time.monotonic()
        todo = plan(policy, candidates, watched.tracked, now)
        for candidate in todo.load:
            self._begin_load(watched, candidate)
        for number in todo.unload:
            self._begin_unload(watched, number)
        watched.waiting = may_yet_serve(candidates, watched.tracked)

    def _forget(self, watched: _Watched, folders: Mapping[int, Path]) -> None:
        """Let a version that was removed be tried afresh when it comes back."""
        ended = [n for n, record in watched.tracked.items() if record.state is State.END]
        for number in ended:
            if number not in folders:
                watched.tracked[number] = replace(
                    watched.tracked[number], fingerprint="", retry_at=None
                )
        for number in sorted(ended)[:-_ENDED_KEPT]:
            if number not in folders:
                del watched.tracked[number]

    def _complain(self, watched: _Watched, complaint: str | None) -> None:
        if complaint and complaint != watched.complaint:
            _LOG.warning("model %s: %s; keeping what is loaded", watched.settings.name, complaint)
        watched.complaint = complaint

    def _begin_load(self, watched: _Watched, candidate: Candidate) -> None:
        before = watched.tracked.get(candidate.number)
        same = before is not None and before.fingerprint == candidate.fingerprint
        attempts = before.attempts if before is not None and same else 0
        self._track(
            watched,
            candidate.number,
            Tracked(State.LOADING, candidate.fingerprint, attempts + 1),
        )
        path = Path(candidate.path)
        future = self._loads.submit(lambda: (self._load(path), labels_of(path)))
        future.add_done_callback(
            lambda done: self._done.put(lambda: self._end_load(watched, candidate.number, done))
        )

    def _end_load(
        self,
        watched: _Watched,
        number: int,
        done: Future[tuple[LoadedModel, tuple[str, ...]]],
    ) -> None:
        record = watched.tracked[number]
        error = done.exception()
        if error is not None:
            self._fail(watched, number, _as_status(error))
            return
        model, labels = done.result()
        watched.servables[number] = Servable(watched.settings.name, number, model, labels)
        self._track(watched, number, replace(record, state=State.AVAILABLE, attempts=0))
        _LOG.info("model %s: version %d is loaded", watched.settings.name, number)
        self._on_change()

    def _fail(self, watched: _Watched, number: int, error: StatusError) -> None:
        record = after_failure(
            watched.tracked[number],
            error,
            retries=self._settings.max_retries,
            retry_at=time.monotonic() + self._settings.retry_s,
            transient=error.code in TRANSIENT,
        )
        self._track(watched, number, record)
        _LOG.error(
            "model %s: version %d cannot be loaded (%s); %s",
            watched.settings.name,
            number,
            describe(error),
            f"trying again in {self._settings.retry_s:g} s"
            if record.retry_at is not None
            else "it is left alone until its files change",
        )

    def _begin_unload(self, watched: _Watched, number: int) -> None:
        servable = watched.servables.pop(number)
        self._track(watched, number, replace(watched.tracked[number], state=State.UNLOADING))

        def close() -> None:
            servable.model.close()
            self._done.put(lambda: self._end_unload(watched, number))

        servable.retire(lambda: _submit(self._unloads, close))

    def _end_unload(self, watched: _Watched, number: int) -> None:
        self._track(watched, number, Tracked(State.END))
        _LOG.info("model %s: version %d is unloaded", watched.settings.name, number)
        self._on_change()

    def _track(self, watched: _Watched, number: int, record: Tracked) -> None:
        watched.tracked[number] = record
        self._catalogue.publish(watched.settings.name, watched.servables, statuses(watched.tracked))

    def _close_all(self, watched: _Watched) -> None:
        idle = threading.Semaphore(0)
        servables = list(watched.servables.values())
        watched.servables.clear()
        self._catalogue.publish(watched.settings.name, {}, statuses(watched.tracked))
        for servable in servables:
            servable.retire(idle.release)
        for servable in servables:
            idle.acquire()
            servable.model.close()


def _submit(pool: ThreadPoolExecutor, work: Callable[[], None]) -> None:
    pool.submit(work).add_done_callback(_report)


def _report(done: Future[None]) -> None:
    if (error := done.exception()) is not None:
        _LOG.error("a version could not be unloaded", exc_info=error)


def _as_status(error: BaseException) -> StatusError:
    if isinstance(error, StatusError):
        return error
    return StatusError(Code.UNKNOWN, f"{type(error).__name__}: {error}")


def _unservable(watched: _Watched) -> ServingError:
    name = watched.settings.name
    failed = [
        (number, record.error)
        for number, record in sorted(watched.tracked.items(), reverse=True)
        if record.error is not None
    ]
    if failed:
        number, error = failed[0]
        return ServingError(
            f"expected a version of {name} that can be loaded, got an error from version {number}: "
            f"{describe(error)}",
            hint=f"export the model again, or remove {watched.settings.base_path}/{number}",
        )
    reason = watched.complaint or "found none that it may serve"
    return ServingError(
        f"expected versions of {name} in {watched.settings.base_path}, {reason}",
        hint="export a model first: timonel export --name NAME",
    )

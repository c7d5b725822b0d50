"""Watch the models' folders and load versions as `plan.plan` decides.

One thread owns all state. It looks at the disk, submits loads and unloads to small pools, and takes
their results and new configurations from a queue. A load that takes minutes, or a pending retry,
therefore delays no other model.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from timonel.serving.manager.buckets.factory import sources
from timonel.serving.manager.catalogue import Catalogue, Servable
from timonel.serving.manager.folders import labels_of
from timonel.serving.manager.managed_model import ManagedModel
from timonel.serving.manager.plan import Candidate
from timonel.serving.manager.reload import admit
from timonel.serving.manager.reload_waiters import Reloads, finish, stopping, unservable
from timonel.serving.manager.sources import Held
from timonel.serving.manager.unloading import close, close_all
from timonel.serving.runtimes.base import LoadedModel
from timonel.serving.settings import LoadSettings, ModelSettings
from timonel.serving.status import Code, StatusError

_LOG = logging.getLogger(__name__)
_LEFT_OUT_KEPT = 256
_FOR_EVER_S = 3600.0

Load = Callable[[Path], LoadedModel]


class ModelManager:
    """Load and unload versions as they appear and disappear on disk.

    Owns the versions it has loaded. `start`, `wait_until_settled` and `stop` belong to one thread;
    `reconfigure` and `models` may be used from any.

    Args:
        models: The initial models.
        load: Loads one version; called from several threads.
        settings: Times and limits.
        catalogue: The catalogue to publish versions in.
    """

    def __init__(
        self,
        models: Sequence[ModelSettings],
        load: Load,
        settings: LoadSettings,
        catalogue: Catalogue,
    ) -> None:
        self._load = load
        self._settings = settings
        self._catalogue = catalogue
        self._models = tuple(models)
        self._watched: dict[str, ManagedModel] = {}
        self._reloads = Reloads()
        self._done: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._make_source = sources(settings, lambda: self._done.put(lambda: None))
        self._loads = ThreadPoolExecutor(settings.threads, thread_name_prefix="load")
        self._unloads = ThreadPoolExecutor(settings.unload_threads, thread_name_prefix="unload")
        self._lock = threading.Lock()
        self._stopping = False
        self._settled = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="loader", daemon=True)

    @property
    def models(self) -> tuple[ModelSettings, ...]:
        """The current configuration."""
        return self._models

    def start(self) -> None:
        """Start watching.

        Raises:
            StatusError: The configuration is rejected.
        """
        admit((), self._models, {}, labels_may_wait=self._settings.labels_may_wait)
        self._configure(self._models)
        self._thread.start()

    def wait_until_settled(self) -> None:
        """Block until all models serve a version or have failed.

        Raises:
            UnservableError: A model has no version that can be loaded.
        """
        self._settled.wait()
        idle = [w for w in self._watched.values() if w.configured and not w.serves]
        if idle:
            raise unservable(idle)

    def reconfigure(self, models: Sequence[ModelSettings]) -> Future[None]:
        """Replace the list of models.

        Removed models are unloaded, new ones are loaded, and labels change atomically. A rejected
        list changes nothing.

        Returns:
            A future that is done once every new model serves a version. It fails with a
            `StatusError` if the list is rejected or a new model has no version that can be loaded.
            Cancelling it ends the wait, not the change.
        """
        done: Future[None] = Future()
        with self._lock:
            if not self._stopping:
                self._done.put(lambda: self._reconfigure(tuple(models), done))
                return done
        done.set_exception(stopping())
        return done

    def stop(self) -> None:
        """Stop watching, and unload all versions once their requests have ended."""
        with self._lock:
            self._stopping = True
        if not self._thread.is_alive():
            return
        self._done.put(lambda: None)
        self._thread.join()
        for watched in self._watched.values():
            watched.close()
        self._loads.shutdown(cancel_futures=True)
        self._take_what_is_there()
        self._reloads.end(stopping())
        for watched in self._watched.values():
            close_all(watched.give_up(), watched.release)
        self._unloads.shutdown()
        self._take_what_is_there()

    def _watch(self) -> None:
        while not self._stopping:
            now = time.monotonic()
            for watched in list(self._watched.values()):
                self._look_safely(watched, now)
            self._tell_who_waits()
            self._take_results(self._wakes_at(now))
        self._settled.set()

    def _wakes_at(self, now: float) -> float:
        times = [w.wakes_at(now) for w in self._watched.values()]
        # Overdue looks were just done and postponed.
        ahead = [t for t in times if t is not None and t > now]
        return min([now + (self._settings.poll_s or _FOR_EVER_S), *ahead])

    def _take_results(self, deadline: float) -> None:
        """Process results of the pools until the next look is due."""
        while (left := deadline - time.monotonic()) > 0:
            try:
                self._done.get(timeout=left)()
            except queue.Empty:
                return
            if self._done.empty():
                return

    def _take_what_is_there(self) -> None:
        while not self._done.empty():
            self._done.get()()

    def _look_safely(self, watched: ManagedModel, now: float) -> None:
        try:
            # With a period of 0, check only the versions found by the first look.
            todo = watched.look(now, relist=self._settings.poll_s > 0)
        except Exception:  # noqa: BLE001 - logged, and tried again
            # The thread must survive any file-system error; it retries soon.
            _LOG.exception("model %s cannot be looked at", watched.name)
            return
        for candidate in todo.load:
            self._begin_load(watched, candidate)
        for number in todo.unload:
            self._begin_unload(watched, number)

    def _begin_load(self, watched: ManagedModel, candidate: Candidate) -> None:
        watched.begin_load(candidate)
        fetched = watched.fetch(candidate)
        # Not in the pool: a bucket that hangs must not block loading other models.
        fetched.add_done_callback(
            lambda done: self._done.put(lambda: self._load_from(watched, candidate.number, done))
        )

    def _load_from(self, watched: ManagedModel, number: int, fetched: Future[Held]) -> None:
        error = fetched.exception()
        if error is not None:
            watched.fail(number, _as_status(error))
            return
        held = fetched.result()
        if self._stopping:
            held.release()
            return
        future = self._loads.submit(lambda: (self._load(held.path), labels_of(held.path)))
        future.add_done_callback(
            lambda done: self._done.put(lambda: self._end_load(watched, number, held, done))
        )

    def _end_load(
        self,
        watched: ManagedModel,
        number: int,
        held: Held,
        done: Future[tuple[LoadedModel, tuple[str, ...]]],
    ) -> None:
        if done.cancelled():
            held.release()
            return
        error = done.exception()
        if error is not None:
            held.release()
            watched.fail(number, _as_status(error))
            return
        model, labels = done.result()
        servable = Servable(watched.name, number, model, labels)
        watched.end_load(servable, held)

    def _begin_unload(self, watched: ManagedModel, number: int) -> None:
        servable = watched.begin_unload(number)
        self._close_when_idle(servable, lambda: self._end_unload(watched, servable))

    def _close_when_idle(self, servable: Servable, then: Callable[[], None]) -> None:
        """Close a version after its last request.

        ``then`` is called in the loader's thread.
        """

        def closing() -> None:
            close(servable)
            self._done.put(then)

        def hand_over() -> None:
            self._unloads.submit(closing)

        servable.retire(hand_over)

    def _end_unload(self, watched: ManagedModel, servable: Servable) -> None:
        watched.release(servable)
        watched.end_unload(servable.version)

    def _reconfigure(self, models: tuple[ModelSettings, ...], done: Future[None]) -> None:
        if self._stopping:
            finish(done, stopping())
            return
        serving = {name: set(self._catalogue.loaded(name)) for name in self._watched}
        before = {model.name for model in self._models}
        may_wait = self._settings.labels_may_wait
        try:
            admit(self._models, models, serving, labels_may_wait=may_wait)
        except StatusError as error:
            finish(done, error)
            return
        if models != self._models:
            _LOG.info("configured: %s", ", ".join(model.name for model in models) or "no models")
        self._configure(models)
        fresh = frozenset(model.name for model in models) - before
        self._reloads.add(done, fresh)

    def _configure(self, models: tuple[ModelSettings, ...]) -> None:
        self._models = models
        self._catalogue.configure({model.name: model.labels for model in models})
        wanted = {model.name: model for model in models}
        for name, watched in self._watched.items():
            watched.configure(wanted.get(name))
        for name, model in wanted.items():
            if name not in self._watched:
                self._watched[name] = ManagedModel(
                    model, self._settings, self._catalogue, self._make_source
                )
        gone = [w for w in self._watched.values() if w.is_gone]
        tellable = [w for w in gone if w.has_ended]
        for watched in [w for w in gone if not w.has_ended] + tellable[:-_LEFT_OUT_KEPT]:
            del self._watched[watched.name]
            self._catalogue.forget(watched.name)

    def _tell_who_waits(self) -> None:
        configured = [w for w in self._watched.values() if w.configured]
        if all(w.serves or not w.hopeful for w in configured):
            self._settled.set()
        self._reloads.answer(self._watched)


def _as_status(error: BaseException) -> StatusError:
    if isinstance(error, StatusError):
        return error
    return StatusError(Code.UNKNOWN, f"{type(error).__name__}: {error}")

"""Watch the models' sources and load versions as `plan.plan` decides.

One thread owns all state. It looks at the sources, submits loads and unloads to small pools, and
takes their results and new configurations from a queue. A load that takes minutes, or a pending
retry, therefore delays no other model.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from timonel.serving.manager.buckets.source import source_factory
from timonel.serving.manager.catalogue import Catalogue, Servable
from timonel.serving.manager.managed_model import ManagedModel
from timonel.serving.manager.plan import Candidate
from timonel.serving.manager.reload import Reloads, admit, finish, unservable
from timonel.serving.manager.sources import labels_of
from timonel.serving.memory import give_back
from timonel.serving.runtimes.base import LoadedModel
from timonel.serving.settings import LoadSettings, ModelSettings
from timonel.serving.status import Code, StatusError
from timonel.storage.content_cache import FolderLease

_LOG = logging.getLogger(__name__)
_REMOVED_KEPT = 256
_FOREVER_S = 3600.0

Load = Callable[[Path], LoadedModel]


class ModelManager:
    """Load and unload versions as they appear and disappear.

    Owns the versions it has loaded. `start`, `wait_until_settled` and `stop` belong to one thread;
    `reconfigure` and `models` may be used from any.

    Args:
        models: The initial models.
        load: Loads one version; called from several threads.
        settings: Times and limits.
        catalogue: The catalogue to publish versions in.
        configured: Called with each new configuration.
    """

    def __init__(
        self,
        models: Sequence[ModelSettings],
        load: Load,
        settings: LoadSettings,
        catalogue: Catalogue,
        configured: Callable[[Sequence[ModelSettings]], None] = lambda _: None,
    ) -> None:
        self._load = load
        self._settings = settings
        self._catalogue = catalogue
        self._configured = configured
        self._models = tuple(models)
        self._managed: dict[str, ManagedModel] = {}
        self._reloads = Reloads()
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._make_source = source_factory(settings, wake=lambda: self._events.put(lambda: None))
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
        idle = [m for m in self._managed.values() if m.configured and not m.serves]
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
                self._events.put(lambda: self._reconfigure(tuple(models), done))
                return done
        done.set_exception(_stopping())
        return done

    def stop(self) -> None:
        """Stop watching, and unload all versions once their requests have ended."""
        with self._lock:
            self._stopping = True
        if not self._thread.is_alive():
            return
        self._events.put(lambda: None)
        self._thread.join()
        for managed in self._managed.values():
            managed.source.close()
        self._loads.shutdown(cancel_futures=True)
        self._drain_events()
        self._reloads.fail(_stopping())
        for managed in self._managed.values():
            _close_all(managed)
        self._unloads.shutdown()
        self._drain_events()

    def _watch(self) -> None:
        while not self._stopping:
            now = time.monotonic()
            for managed in list(self._managed.values()):
                self._look(managed, now)
            configured = [m for m in self._managed.values() if m.configured]
            if all(m.serves or not m.may_serve for m in configured):
                self._settled.set()
            self._reloads.complete(self._managed)
            self._handle_events(self._next_look(now))
        self._settled.set()

    def _next_look(self, now: float) -> float:
        times = [m.next_look(now) for m in self._managed.values()]
        # Overdue looks were just done and postponed.
        ahead = [t for t in times if t is not None and t > now]
        return min([now + (self._settings.poll_s or _FOREVER_S), *ahead])

    def _handle_events(self, deadline: float) -> None:
        """Handle results of the pools until the next look is due."""
        while (left := deadline - time.monotonic()) > 0:
            try:
                self._events.get(timeout=left)()
            except queue.Empty:
                return
            if self._events.empty():
                return

    def _drain_events(self) -> None:
        while not self._events.empty():
            self._events.get()()

    def _look(self, managed: ManagedModel, now: float) -> None:
        try:
            # With a period of 0, check only the versions found by the first look.
            todo = managed.look(now, relist=self._settings.poll_s > 0)
        except Exception:  # noqa: BLE001 - logged, and retried
            # The thread must survive any file-system error; it retries soon.
            _LOG.exception("Cannot check the versions of model %s.", managed.name)
            return
        for candidate in todo.load:
            self._begin_load(managed, candidate)
        for number in todo.unload:
            self._begin_unload(managed, number)

    def _begin_load(self, managed: ManagedModel, candidate: Candidate) -> None:
        managed.begin_load(candidate)
        fetched = managed.source.fetch(candidate)
        # Not in the pool: a bucket that hangs must not block loading other models.
        fetched.add_done_callback(
            lambda done: self._events.put(lambda: self._load_from(managed, candidate.number, done))
        )

    def _load_from(self, managed: ManagedModel, number: int, fetched: Future[FolderLease]) -> None:
        error = fetched.exception()
        if error is not None:
            managed.fail(number, _as_status(error))
            return
        lease = fetched.result()
        if self._stopping:
            lease.release()
            return

        def load() -> Servable:
            return Servable(managed.name, number, self._load(lease.path), labels_of(lease.path))

        self._loads.submit(load).add_done_callback(
            lambda done: self._events.put(lambda: self._end_load(managed, number, lease, done))
        )

    def _end_load(
        self, managed: ManagedModel, number: int, lease: FolderLease, done: Future[Servable]
    ) -> None:
        if done.cancelled():
            lease.release()
        elif (error := done.exception()) is not None:
            lease.release()
            managed.fail(number, _as_status(error))
        else:
            managed.end_load(done.result(), lease)

    def _begin_unload(self, managed: ManagedModel, number: int) -> None:
        """Close a version after its last request."""
        servable = managed.begin_unload(number)

        def close() -> None:
            try:
                servable.model.close()
            except Exception:  # noqa: BLE001 - logged
                # The version takes no more requests, even if not fully closed.
                _LOG.exception("Cannot close version %d of model %s.", number, managed.name)
            give_back()
            self._events.put(lambda: managed.end_unload(servable))

        def idle() -> None:
            self._unloads.submit(close)

        servable.retire(idle)

    def _reconfigure(self, models: tuple[ModelSettings, ...], done: Future[None]) -> None:
        if self._stopping:
            finish(done, _stopping())
            return
        available = {name: set(self._catalogue.loaded(name)) for name in self._managed}
        before = {model.name for model in self._models}
        may_wait = self._settings.labels_may_wait
        try:
            admit(self._models, models, available, labels_may_wait=may_wait)
        except StatusError as error:
            finish(done, error)
            return
        if models != self._models:
            _LOG.info("Configured models: %s", ", ".join(model.name for model in models) or "none")
        self._configure(models)
        self._reloads.add(done, frozenset(model.name for model in models) - before)

    def _configure(self, models: tuple[ModelSettings, ...]) -> None:
        self._models = models
        self._catalogue.configure({model.name: model.labels for model in models})
        self._configured(models)
        by_name = {model.name: model for model in models}
        for name, managed in self._managed.items():
            managed.configure(by_name.get(name))
        for name, model in by_name.items():
            if name not in self._managed:
                self._managed[name] = ManagedModel(
                    model, self._settings, self._catalogue, self._make_source
                )
        gone = [m for m in self._managed.values() if m.is_gone]
        with_status = [m for m in gone if m.has_status]
        for managed in [m for m in gone if not m.has_status] + with_status[:-_REMOVED_KEPT]:
            del self._managed[managed.name]
            self._catalogue.forget(managed.name)


def _close_all(managed: ManagedModel) -> None:
    """Close all versions of a model after their last requests."""
    idle = {servable: threading.Event() for servable in managed.withdraw_all()}
    for servable, event in idle.items():
        servable.retire(event.set)
    for servable, event in idle.items():
        event.wait()
        servable.model.close()
        managed.release(servable)


def _stopping() -> StatusError:
    return StatusError(Code.UNAVAILABLE, "The server is stopping.")


def _as_status(error: BaseException) -> StatusError:
    if isinstance(error, StatusError):
        return error
    return StatusError(Code.UNKNOWN, f"{type(error).__name__}: {error}")

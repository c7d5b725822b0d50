"""Watch the models' sources and load versions as `plan.plan` decides.

One thread owns all state and never waits: it starts threads that look at sources, load and unload,
and takes their results and new configurations from a queue. A file system that hangs, a load that
never ends, or a pending retry therefore delays no other model.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial

from timonel.serving.batching.scheduled_model import Load
from timonel.serving.manager.buckets.source import source_factory
from timonel.serving.manager.catalogue import Catalogue, Servable
from timonel.serving.manager.managed_model import SLOW_S, Found, Look, ManagedModel
from timonel.serving.manager.plan import Candidate
from timonel.serving.manager.reload import Reloads, admit, finish, unservable
from timonel.serving.manager.sources import check_files, labels_of, missing_of
from timonel.serving.manager.tasks import ModelTask, Tasks
from timonel.serving.memory import give_back
from timonel.serving.runtimes.base import VersionFolder
from timonel.serving.settings.models import LoadSettings, ModelSettings
from timonel.serving.status import Code, StatusError, as_status
from timonel.storage.content_cache import FolderLease

_LOG = logging.getLogger(__name__)
_REMOVED_KEPT = 256
_FOREVER_S = 3600.0
_LOOKS, _LOOK_S = 32, 1.0
"""Looks at the same time, and the time after which one no longer delays others: most take less than
a millisecond, those at buckets longer, and those at a network file system that hangs forever."""
_LOAD_S = 5.0
"""Time after which another load starts beside one: most take less than a second, a large one is
bound by its disk, and those that never end must not hold up the good ones for long."""
_TOGETHER_S = 0.005
"""Looks at many models end at about the same time, and each turn goes through all models."""


class ModelManager:
    """Load and unload versions as they appear and disappear.

    Owns the versions it has loaded. `start`, `wait_until_settled` and `stop` belong to one thread;
    `reconfigure` and `models` may be used from any.

    Args:
        load: Loads one version; called from several threads.
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
        self._make_source = source_factory(settings)
        self._looks = Tasks(_LOOKS, _LOOK_S, self._events.put)
        self._loads = Tasks(
            settings.threads,
            _LOAD_S,
            self._events.put,
            slow_s=SLOW_S,
            timeout_s=settings.load_timeout_s,
            on_slow=lambda name: _LOG.warning("Still loading %s after %g s.", name, SLOW_S),
        )
        self._closing: set[Servable] = set()
        self._lock = threading.Lock()
        self._stopping = False
        self._settled = threading.Event()
        self._started = 0.0
        self._thread = threading.Thread(target=self._watch, name="loader", daemon=True)

    @property
    def models(self) -> tuple[ModelSettings, ...]:
        """The current configuration."""
        return self._models

    def start(self) -> None:
        """Start watching."""
        admit((), self._models, {}, labels_may_wait=self._settings.labels_may_wait)
        self._configure(self._models)
        self._started = time.monotonic()
        self._thread.start()

    def wait_until_settled(self) -> None:
        """Block until all models serve a version or have failed.

        Without ``fail_fast``, retries and slow loads are not waited for once a model serves.
        """
        self._settled.wait()
        configured = [m for m in self._managed.values() if m.configured]
        idle = [m for m in configured if not m.serves]
        if idle and (self._settings.fail_fast or len(idle) == len(configured)):
            raise unservable(idle)
        if idle:
            _LOG.warning("Serving without %s.", ", ".join(m.name for m in idle))

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

    def stop(self, grace_s: float = 1.0) -> None:
        """Stop watching, and unload all versions once their requests have ended.

        A load or a request that does not end keeps its daemon thread until the process ends.
        """
        with self._lock:
            self._stopping = True
        if not self._thread.is_alive():
            return
        deadline = time.monotonic() + grace_s
        self._events.put(lambda: None)
        self._thread.join()
        self._looks.cancel()
        for managed in self._managed.values():
            managed.source.close()
        while not self._events.empty():
            self._events.get()()
        self._loads.cancel()
        self._reloads.fail(_stopping())
        for managed in self._managed.values():
            for servable in managed.withdraw_all():
                self._close(servable)
        while self._closing and (left := deadline - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                self._events.get(timeout=left)()

    def _watch(self) -> None:
        while not self._stopping:
            now = time.monotonic()
            for managed in self._managed.values():
                self._begin_look(managed, now)
            self._looks.advance(now)
            self._loads.advance(now)
            if self._is_settled(now):
                self._settled.set()
            self._reloads.complete(self._managed)
            self._handle_events(self._next_change(now))
        self._settled.set()

    def _is_settled(self, now: float) -> bool:
        configured = [m for m in self._managed.values() if m.configured]
        pending = [m for m in configured if m.may_serve and not m.serves]
        if not pending:
            return True
        if self._settings.fail_fast or self._loads.are_busy():
            return False
        # Retries, slow loads and a bucket that hangs do not keep others from being served.
        is_over = now >= self._started + SLOW_S
        return any(m.serves for m in configured) and all(m.has_failed or is_over for m in pending)

    def _next_change(self, now: float) -> float:
        times = [managed.next_look(now) for managed in self._managed.values()]
        if now < self._started + SLOW_S:
            times.append(self._started + SLOW_S)
        times += [self._looks.next_change(now), self._loads.next_change(now)]
        return min(now + _FOREVER_S, *times)

    def _handle_events(self, deadline: float) -> None:
        """Handle events until the deadline, or for a moment after the first one."""
        while (left := deadline - time.monotonic()) > 0:
            try:
                self._events.get(timeout=left)()
            except queue.Empty:
                return
            deadline = min(deadline, time.monotonic() + _TOGETHER_S)

    def _begin_look(self, managed: ManagedModel, now: float) -> None:
        look = managed.begin_look(now)
        if look is not None:
            self._looks.submit(ModelTask("look", look.read, partial(self._end_look, managed, look)))

    def _end_look(self, managed: ManagedModel, look: Look, found: Future[Found]) -> None:
        if self._stopping:
            return
        todo = managed.end_look(look, found, time.monotonic())
        for candidate in todo.load:
            self._begin_load(managed, candidate)
        for number in todo.unload:
            servable = managed.begin_unload(number)
            self._close(servable, partial(managed.end_unload, servable))

    def _begin_load(self, managed: ManagedModel, candidate: Candidate) -> None:
        managed.begin_load(candidate)
        fetch = partial(managed.source.fetch, candidate)
        # Not among the loads: a bucket that hangs must not block loading other models.
        ModelTask("fetch", fetch, partial(self._load_from, managed, candidate)).start(
            self._events.put
        )

    def _load_from(
        self, managed: ManagedModel, candidate: Candidate, fetched: Future[FolderLease]
    ) -> None:
        number, error = candidate.number, fetched.exception()
        if error is not None:
            self._fail(managed, number, error)
            return
        lease = fetched.result()
        if self._stopping:
            lease.release()
            return

        def load() -> Servable:
            try:
                check_files(lease.path)
                labels, missing = labels_of(lease.path), missing_of(lease.path)
                model = self._load(VersionFolder(managed.name, number, candidate.path, lease.path))
                return Servable(managed.name, number, model, labels, missing, lease)
            except BaseException:
                lease.release()
                raise

        def ended(done: Future[Servable]) -> None:
            if done.cancelled():
                lease.release()
                return
            is_awaited = not self._stopping and managed.awaits(candidate)
            if (error := done.exception()) is None:
                if is_awaited:
                    managed.end_load(done.result())
                else:
                    self._close(done.result())
            elif is_awaited:
                self._fail(managed, number, error)

        name = f"version {number} of model {managed.name}"
        self._loads.submit(ModelTask(name, load, ended, partial(self._expire, managed, number)))

    def _expire(self, managed: ManagedModel, number: int, loads: int) -> None:
        limit = f"{self._settings.load_timeout_s:g} s, its time limit"
        text = f"the load has not ended after {limit}; such loads: {loads}"
        managed.fail(number, StatusError(Code.DEADLINE_EXCEEDED, text), may_retry=False)

    def _fail(self, managed: ManagedModel, number: int, error: BaseException) -> None:
        if isinstance(error, OSError):  # files are the publisher's: no traceback
            status = StatusError(Code.UNKNOWN, f"{type(error).__name__}: {error}")
        else:
            what = f"loading version {number} of model {managed.name}"
            status = as_status(error, what, Code.UNKNOWN)
        managed.fail(number, status)

    def _close(self, servable: Servable, closed: Callable[[], None] = lambda: None) -> None:
        """Close a version after its last request, in a daemon thread."""
        self._closing.add(servable)

        def ended(_: Future[None]) -> None:
            self._closing.discard(servable)
            closed()

        def close() -> None:
            try:
                servable.close()
            except Exception:  # noqa: BLE001 - logged
                # The version takes no more requests, even if not fully closed.
                _LOG.exception(
                    "Cannot close version %d of model %s.", servable.version, servable.name
                )
            give_back()

        unload = ModelTask("unload", close, ended)
        servable.retire(lambda: unload.start(self._events.put))

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


def _stopping() -> StatusError:
    return StatusError(Code.UNAVAILABLE, "The server is stopping.")

"""Log sampled requests and answers to disk, without delaying requests.

If the queue or the disk is full, records are dropped and counted.
"""

from __future__ import annotations

import logging
import queue
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from timonel.serving.inference.logged_request import LoggedRequest
from timonel.serving.settings import RequestLogSettings
from timonel.serving.signature import Array, bytes_of
from timonel.serving.status import Code
from timonel.serving.telemetry.request_log.encoding import encode_exchange
from timonel.serving.telemetry.request_log.files import RotatingFile

_LOG = logging.getLogger(__name__)
_QUEUED = 1024
_QUEUED_BYTES = 64 * 2**20
_PAUSE_S = 10.0
_TICK_S = 1.0

Count = Callable[[str, Code], None]
Configured = Callable[[str], RequestLogSettings | None]


@dataclass(frozen=True)
class _Entry:
    exchange: LoggedRequest
    settings: RequestLogSettings
    size: int


class RequestLog:
    """Samples, queues and writes exchanges. Thread-safe.

    Owns one thread from `start` to `stop`.

    Args:
        configured: Returns the log settings of a model; None if its requests are not logged.
        count: Called for each sampled exchange: ``OK`` once it is in its file,
            ``RESOURCE_EXHAUSTED`` if the queue or the disk was full, ``INTERNAL`` if it could not
            be encoded.
        chance: Returns a random number in [0, 1).
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        configured: Configured,
        count: Count,
        chance: Callable[[], float] = random.random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._configured = configured
        self._count = count
        self._chance = chance
        self._clock = clock
        self._queue: queue.Queue[_Entry | None] = queue.Queue(_QUEUED)
        self._queued_bytes = 0
        self._lock = threading.Lock()
        self._files: dict[str, RotatingFile] = {}
        self._paused_until: dict[str, float] = {}
        self._thread = threading.Thread(target=self._write_all, name="requestlog", daemon=True)
        self._stopping = False

    def start(self) -> None:
        """Start the writer thread."""
        self._thread.start()

    def stop(self) -> None:
        """Write the queue, close the files, and end the thread."""
        self._stopping = True
        if self._thread.is_alive():
            self._thread.join()

    def wants(self, model: str) -> bool:
        """Return whether to record the current request of this model."""
        settings = self._configured(model)
        return settings is not None and self._chance() < settings.sampling_rate

    def record(self, exchange: LoggedRequest) -> None:
        """Queue a copy of an exchange, or drop it if full."""
        settings = self._configured(exchange.model)
        if settings is None or self._stopping:
            return
        size = _size(exchange)
        with self._lock:
            if self._queued_bytes + size > _QUEUED_BYTES:
                self._count(exchange.model, Code.RESOURCE_EXHAUSTED)
                return
            self._queued_bytes += size
        try:
            self._queue.put_nowait(_Entry(_copied(exchange), settings, size))
        except queue.Full:
            self._forget(size)
            self._count(exchange.model, Code.RESOURCE_EXHAUSTED)

    def _forget(self, size: int) -> None:
        with self._lock:
            self._queued_bytes -= size

    def _write_all(self) -> None:
        while not (self._stopping and self._queue.empty()):
            try:
                entry = self._queue.get(timeout=_TICK_S)
            except queue.Empty:
                entry = None
            if entry is not None:
                self._count(entry.exchange.model, self._write(entry))
                self._forget(entry.size)
            for prefix, file in self._files.items():
                self._guarded(prefix, file.close_if_old)
        for prefix, file in self._files.items():
            self._guarded(prefix, file.close)

    def _write(self, entry: _Entry) -> Code:
        prefix = entry.settings.filename_prefix
        if self._clock() < self._paused_until.get(prefix, 0.0):
            return Code.RESOURCE_EXHAUSTED
        try:
            payload = encode_exchange(entry.exchange, entry.settings.sampling_rate)
        except Exception:  # noqa: BLE001 - a model's odd output must not end the log
            _LOG.exception("an answer of %s cannot be logged", entry.exchange.model)
            return Code.INTERNAL
        file = self._file(entry.settings)
        return (
            Code.OK
            if self._guarded(prefix, lambda: file.write(payload))
            else Code.RESOURCE_EXHAUSTED
        )

    def _file(self, settings: RequestLogSettings) -> RotatingFile:
        prefix = settings.filename_prefix
        if prefix not in self._files:
            self._files[prefix] = RotatingFile(
                prefix, settings.max_bytes, settings.max_age_s, self._clock
            )
        return self._files[prefix]

    def _guarded(self, prefix: str, work: Callable[[], None]) -> bool:
        try:
            work()
        except OSError as error:
            # Pause instead of retrying for each request: the disk stays full for a while.
            self._paused_until[prefix] = self._clock() + _PAUSE_S
            _LOG.warning("requests are not logged to %s: %s", prefix, error.strerror or error)
            return False
        return True


def _size(exchange: LoggedRequest) -> int:
    return sum(
        bytes_of(array)
        for arrays in (exchange.inputs, exchange.outputs)
        for array in arrays.values()
    )


def _copied(exchange: LoggedRequest) -> LoggedRequest:
    return replace(exchange, inputs=_copies(exchange.inputs), outputs=_copies(exchange.outputs))


def _copies(arrays: Mapping[str, Array]) -> dict[str, Array]:
    return {name: np.array(array) for name, array in arrays.items()}

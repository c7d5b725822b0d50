"""Sampled log of requests and responses on disk, for warm-up, training and inspection.

Requests never wait for it: if the queue or the disk is full, records are dropped and counted.
Records are in TFRecord files that rotate at a size or an age. A file ends in ``.part`` until it is
complete. A record that a full disk truncated is removed, so that later records can be read.
"""

from __future__ import annotations

import errno
import io
import logging
import os
import queue
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from timonel.data.records import frame
from timonel.serving.inference import classification, conversion
from timonel.serving.inference.context import LoggedRequest
from timonel.serving.protos.messages import example_pb2, prediction_log_pb2
from timonel.serving.protos.tensors import to_proto
from timonel.serving.settings.models import ModelSettings, RequestLogSettings
from timonel.serving.signature import Array, bytes_of
from timonel.serving.status import Code

_LOG = logging.getLogger(__name__)
_QUEUED = 1024
_QUEUED_BYTES = 64 * 2**20
_PAUSE_S = 10.0
_TICK_S = 1.0
_FILE_BYTES, _FILE_S = 64 * 2**20, 60.0
"""Size and age at which a file is closed and gets its name."""
PART = ".part"


@dataclass(frozen=True)
class _Entry:
    exchange: LoggedRequest
    settings: RequestLogSettings
    size: int


class RequestLog:
    """Sample, queue and write exchanges. Thread-safe.

    Owns one thread from `start` to `stop`.

    Args:
        count: Called for each sampled exchange: ``OK`` once it is in its file,
            ``RESOURCE_EXHAUSTED`` if the queue or the disk was full, ``INTERNAL`` if it could not
            be encoded.
        chance: Returns a random number in [0, 1).
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        count: Callable[[str, Code], None],
        chance: Callable[[], float] = random.random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.sampled: Mapping[str, RequestLogSettings] = {}
        """Settings by model."""
        self._count = count
        self._chance = chance
        self._clock = clock
        self._queue: queue.SimpleQueue[_Entry] = queue.SimpleQueue()
        self._queued_bytes = 0
        self._lock = threading.Lock()
        self._files: dict[str, RotatingFile] = {}
        self._paused_until: dict[str, float] = {}
        self._thread = threading.Thread(target=self._write_all, name="requestlog", daemon=True)
        self._stopping = False

    def configure(self, models: Iterable[ModelSettings]) -> None:
        """Use the log settings of these models."""
        self.sampled = {each.name: each.request_log for each in models if each.request_log}

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
        settings = self.sampled.get(model)
        return settings is not None and self._chance() < settings.sampling_rate

    def record(self, exchange: LoggedRequest) -> None:
        """Queue a copy of an exchange, or drop it if full."""
        settings = self.sampled.get(exchange.model)
        if settings is None or self._stopping:
            return
        size = _size(exchange)
        with self._lock:
            full = self._queue.qsize() >= _QUEUED or self._queued_bytes + size > _QUEUED_BYTES
            if not full:
                self._queued_bytes += size
        if full:
            self._count(exchange.model, Code.RESOURCE_EXHAUSTED)
            return
        copy = replace(exchange, inputs=_copies(exchange.inputs), outputs=_copies(exchange.outputs))
        self._queue.put(_Entry(copy, settings, size))

    def _write_all(self) -> None:
        while not (self._stopping and self._queue.empty()):
            try:
                entry = self._queue.get(timeout=_TICK_S)
            except queue.Empty:
                entry = None
            if entry is not None:
                self._count(entry.exchange.model, self._write(entry))
                with self._lock:
                    self._queued_bytes -= entry.size
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
            _LOG.exception("Cannot log a request of model %s.", entry.exchange.model)
            return Code.INTERNAL
        if prefix not in self._files:
            self._files[prefix] = RotatingFile(prefix, clock=self._clock)
        file = self._files[prefix]
        written = self._guarded(prefix, lambda: file.write(payload))
        return Code.OK if written else Code.RESOURCE_EXHAUSTED

    def _guarded(self, prefix: str, work: Callable[[], None]) -> bool:
        try:
            work()
        except OSError as error:
            # Pause instead of retrying for each request: the disk stays full for a while.
            self._paused_until[prefix] = self._clock() + _PAUSE_S
            _LOG.warning("Cannot log requests to %s: %s", prefix, error.strerror or error)
            return False
        return True


def _size(exchange: LoggedRequest) -> int:
    return sum(
        bytes_of(array)
        for arrays in (exchange.inputs, exchange.outputs)
        for array in arrays.values()
    )


def _copies(arrays: Mapping[str, Array]) -> dict[str, Array]:
    return {name: np.array(array) for name, array in arrays.items()}


class RotatingFile:
    """Write records to one file after another. Belongs to one thread."""

    def __init__(
        self,
        prefix: str,
        max_bytes: int = _FILE_BYTES,
        max_age_s: float = _FILE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._prefix = prefix
        self._max_bytes = max_bytes
        self._max_age_s = max_age_s
        self._clock = clock
        self._file: io.FileIO | None = None
        self._path = Path()
        self._size = 0
        self._opened = 0.0
        self._count = 0

    def write(self, payload: bytes) -> None:
        """Append a record."""
        file = self._file or self._open()
        record = b"".join(frame(payload))
        try:
            written = file.write(record)
        except OSError:
            self._truncate(file)
            raise
        if written != len(record):
            # The kernel writes as much as fits, and would fail on the rest.
            self._truncate(file)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._size = file.tell()
        if self._size >= self._max_bytes:
            self.close()

    def close_if_old(self) -> None:
        """Close the file if it has reached its maximum age."""
        if self._file is not None and self._clock() - self._opened >= self._max_age_s:
            self.close()

    def close(self) -> None:
        """Close the file, if any, and rename it to its final name."""
        if self._file is None:
            return
        file, self._file = self._file, None
        file.close()
        if self._size:
            self._path.rename(str(self._path).removesuffix(PART))
        else:
            self._path.unlink()

    def _open(self) -> io.FileIO:
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
        self._count += 1
        path = Path(f"{self._prefix}-{stamp}-{os.getpid()}-{self._count}.tfrecord{PART}")
        path.parent.mkdir(parents=True, exist_ok=True)
        # Unbuffered, so that data rejected by a full disk is not written later.
        self._file = path.open("xb", buffering=0)
        self._path, self._size, self._opened = path, 0, self._clock()
        return self._file

    def _truncate(self, file: io.FileIO) -> None:
        try:
            file.truncate(self._size)
            file.seek(self._size)
        except OSError:
            # The file is readable up to the truncated record; it keeps its temporary name.
            self._file = None
            file.close()


def encode_exchange(exchange: LoggedRequest, sampling_rate: float) -> bytes:
    """Return an exchange as a serialized PredictionLog of the called API.

    A task of MultiInference becomes a separate log, of Classify or Regress.
    """
    log = prediction_log_pb2.PredictionLog()
    log.log_metadata.sampling_config.sampling_rate = sampling_rate
    encode, field = _ENCODERS[_api(exchange)]
    entry = getattr(log, field)
    for spec in (log.log_metadata.model_spec, entry.request.model_spec, entry.response.model_spec):
        spec.name = exchange.model
        spec.version.value = exchange.version
        spec.signature_name = exchange.signature.name
    encode(entry.request, entry.response, exchange)
    return bytes(log.SerializeToString())


def _api(exchange: LoggedRequest) -> str:
    api = exchange.api.lower()
    if api == "multiinference":
        # By what the task asked for: signatures of TensorFlow 2 are all named Predict.
        return "regress" if "outputs" in exchange.outputs else "classify"
    return api if api in _ENCODERS else "predict"


def _predict(request: Any, response: Any, exchange: LoggedRequest) -> None:
    request.output_filter.extend(exchange.output_filter)
    for name, array in exchange.inputs.items():
        request.inputs[name].CopyFrom(to_proto(array))
    for name, array in exchange.outputs.items():
        response.outputs[name].CopyFrom(to_proto(array))


def _classify(request: Any, response: Any, exchange: LoggedRequest) -> None:
    _fill(request.input, exchange)
    outputs = exchange.outputs
    found = classification.paired(outputs.get("classes"), outputs.get("scores"))
    conversion.fill_result(response.result, found)


def _regress(request: Any, response: Any, exchange: LoggedRequest) -> None:
    _fill(request.input, exchange)
    conversion.fill_result(response.result, exchange.outputs["outputs"].reshape(-1))


def _fill(message: Any, exchange: LoggedRequest) -> None:
    examples: Array = exchange.inputs["inputs"]
    # Parsing has merged a common context into each example.
    message.example_list.examples.extend(
        example_pb2.Example.FromString(example) for example in examples.reshape(-1).tolist()
    )


_ENCODERS: Mapping[str, tuple[Callable[[Any, Any, LoggedRequest], None], str]] = {
    "predict": (_predict, "predict_log"),
    "classify": (_classify, "classify_log"),
    "regress": (_regress, "regress_log"),
}

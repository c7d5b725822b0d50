"""Collect and report measurements of a server. Thread-safe.

Every method on a request's path takes a few microseconds: see docs/design/serving.md.
"""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from timonel.serving.batching.queue import BatchObservation
from timonel.serving.inference.context import Correlation, Observation
from timonel.serving.manager.catalogue import Catalogue
from timonel.serving.signature import Array
from timonel.serving.status import Code
from timonel.serving.telemetry.answer_log import AnswerLog
from timonel.serving.telemetry.counts import (
    BatchCounts,
    BatchKey,
    Concurrency,
    PathKey,
    RequestKey,
    Requests,
    ServerCounts,
    Table,
    Times,
)
from timonel.serving.telemetry.metrics import tensorflow_serving_families, timonel_families
from timonel.serving.telemetry.prometheus import encode
from timonel.serving.telemetry.resources import measure
from timonel.serving.telemetry.tracing import OpenTelemetryTracer

MODEL_CALLS = frozenset(
    {
        "predict", "classify", "regress", "infer",
        "Predict", "Classify", "Regress", "MultiInference", "ModelInfer",
    }
)  # fmt: skip
"""Methods whose requests count: those that run a model."""
RECENT = 2048
_UNKNOWN_MODELS = 256
_OTHERS = "(other)"
_NAME_LIMIT = 256


class Recent(NamedTuple):
    """A recent request, for live displays; ``stages`` are the seconds of each of `STAGES`."""

    key: RequestKey
    seconds: float
    stages: tuple[float, float, float, float]
    rows: int


class ModelTraffic(NamedTuple):
    """Cumulative traffic of a model: answered requests, failed ones, batches and their rows."""

    requests: int = 0
    errors: int = 0
    batches: int = 0
    rows: int = 0


class Monitor:
    """Measurements of a server."""

    def __init__(
        self,
        catalogue: Catalogue | None = None,
        tracer: OpenTelemetryTracer | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.answers = AnswerLog()
        self._catalogue = catalogue or Catalogue()
        self._tracer = tracer
        self._clock = clock
        self._concurrency = ConcurrencyMeter(clock())
        self._requests: Table[RequestKey, Requests] = Table(Requests)
        self._batches: Table[BatchKey, BatchCounts] = Table(BatchCounts)
        self._loads: Table[PathKey, Times] = Table(Times)
        self._warmups: Table[PathKey, Times] = Table(Times)
        self._logged: collections.Counter[tuple[str, str]] = collections.Counter()
        self._lock = threading.Lock()
        self._unknown_models: set[str] = set()
        self._recent: collections.deque[Recent] = collections.deque(maxlen=RECENT)

    def begin(
        self, entrypoint: str, api: str, model: str = "", correlation: Correlation | None = None
    ) -> Observation:
        """Return the observation of a request that has just arrived."""
        began = self._clock()
        if api in MODEL_CALLS:
            self._concurrency.begin(began)
        is_compared = correlation is not None and correlation.comparison is not None
        outputs: list[Mapping[str, Array]] | None = [] if is_compared else None
        return Observation(entrypoint, api, model, began, correlation, outputs)

    def end(self, observation: Observation, code: Code = Code.OK) -> None:
        """Count a request answered with ``code``; call it once per request."""
        ended = self._clock()
        if observation.api in MODEL_CALLS:
            self._concurrency.end(ended)
        version = observation.version
        key = RequestKey(
            observation.entrypoint,
            observation.api,
            observation.model if version is not None else self._limited(observation.model),
            version,
            observation.signature,
            code,
        )
        seconds = ended - observation.began
        stages = stages_of(observation, ended)
        self._requests[key].observe(seconds, stages, observation.run_s, observation.rows)
        self._recent.append(Recent(key, seconds, stages, observation.rows))
        if self._tracer is not None:
            self._tracer.trace(observation, stages, ended, code)
        if observation.outputs is not None:
            self.answers.record(observation, code)

    def batch(self, key: BatchKey, batch: BatchObservation) -> None:
        """Count a computed batch."""
        self._batches[key].observe(batch)

    def loaded(self, key: PathKey, seconds: float) -> None:
        """Count an attempt to load a version."""
        self._loads[key].observe(seconds)

    def warmed(self, key: PathKey, seconds: float, records: int) -> None:
        """Count an attempt to warm up a version with ``records`` requests."""
        self._warmups[key].observe(seconds, records)

    def logged(self, model: str, code: Code) -> None:
        """Count a request that was sampled for the request log."""
        with self._lock:
            self._logged[model, code.name] += 1

    def counts(self) -> ServerCounts:
        """Return all counts. Slow, because it measures processes: not for an event loop."""
        with self._lock:
            logged = dict(self._logged)
        usage = measure()
        return ServerCounts(
            requests=self._requests.snapshot(),
            batches=self._batches.snapshot(),
            loads=self._loads.snapshot(),
            warmups=self._warmups.snapshot(),
            logged=logged,
            versions=count_versions(self._catalogue),
            memory=usage.memory,
            cpu_s=usage.cpu_s,
            concurrency=self._concurrency.read(self._clock()),
            queued=count_queued(self._catalogue),
        )

    def page(self) -> bytes:
        """Return the metrics page."""
        counts = self.counts()
        return encode((*tensorflow_serving_families(counts), *timonel_families(counts)))

    def traffic(self) -> Mapping[str, ModelTraffic]:
        """Return each model's traffic, and the total under the empty name.

        Takes no lock: concurrent counts may be included in part.
        """
        found: dict[str, ModelTraffic] = {"": ModelTraffic()}
        for request, counted in self._requests.snapshot().items():
            if request.api:
                count = counted.whole.count
                errors = 0 if request.code is Code.OK else count
                _add(found, request.model, ModelTraffic(count, errors))
        for batch, computed in self._batches.snapshot().items():
            rows = computed.rows
            _add(found, batch.model, ModelTraffic(0, 0, rows.count, int(rows.total)))
        return found

    def recent(self) -> list[Recent]:
        """Return recent requests, oldest first, at most `RECENT`."""
        return list(self._recent)

    def _limited(self, name: str) -> str:
        """Return the name to count a request under if no version matched.

        Clients choose these names, so their number is limited.
        """
        if name in self._unknown_models:
            return name
        if len(name) > _NAME_LIMIT or len(self._unknown_models) >= _UNKNOWN_MODELS:
            return _OTHERS
        self._unknown_models.add(name)
        return name


def stages_of(observation: Observation, ended: float) -> tuple[float, float, float, float]:
    """Return the seconds of `STAGES`; their sum is ``ended - observation.began``."""
    began, computed, run_s = observation.began, observation.computed, observation.run_s
    if computed is None:
        return ended - began, 0.0, 0.0, 0.0
    queue = min(observation.queue_s, run_s)
    return computed - began - run_s, queue, run_s - queue, ended - computed


class ConcurrencyMeter:
    """Requests in flight, and their number integrated over time. Thread-safe.

    Autoscalers compute the average over any window from two readings of `Concurrency.request_s`, as
    exactly as Knative's queue-proxy. Times are in seconds.
    """

    def __init__(self, now: float) -> None:
        self._lock = threading.Lock()
        self._at = now
        self._in_flight = 0
        self._request_s = 0.0

    def begin(self, now: float) -> None:
        """Count a request that has arrived."""
        with self._lock:
            self._advance(now)
            self._in_flight += 1

    def end(self, now: float) -> None:
        """Count a request that is answered."""
        with self._lock:
            self._advance(now)
            self._in_flight -= 1

    def read(self, now: float) -> Concurrency:
        """Return the present values."""
        with self._lock:
            self._advance(now)
            return Concurrency(self._in_flight, self._request_s)

    def _advance(self, now: float) -> None:
        # Another thread may have read the clock later and come first.
        now = max(now, self._at)
        self._request_s += self._in_flight * (now - self._at)
        self._at = now


def count_versions(catalogue: Catalogue) -> Mapping[tuple[str, str], int]:
    """Count versions by model and state."""
    return collections.Counter(
        (name, status.state.value) for name in catalogue.names for status in catalogue.known(name)
    )


def count_queued(catalogue: Catalogue) -> int:
    """Count the requests that wait to be computed by any loaded version."""
    servables = [each for name in catalogue.names for each in catalogue.loaded(name).values()]
    return sum(servable.model.queued for servable in servables)


def _add(found: dict[str, ModelTraffic], model: str, more: ModelTraffic) -> None:
    for name in {model, ""}:
        before = found.get(name, ModelTraffic())
        found[name] = ModelTraffic(*(a + b for a, b in zip(before, more, strict=True)))

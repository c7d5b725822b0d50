from __future__ import annotations

import contextlib
import threading
import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.contracts.runtimes import FakeModel
from timonel.serving.batching.queue import BatchObservation
from timonel.serving.batching.scheduling import scheduled
from timonel.serving.inference.context import Observation
from timonel.serving.inference.flow import Call, measure
from timonel.serving.manager.catalogue import Catalogue, ModelSpec, Servable
from timonel.serving.manager.plan import VersionState, VersionStatus
from timonel.serving.signature import DEFAULT_SIGNATURE
from timonel.serving.status import Code, StatusError
from timonel.serving.telemetry.counts import BatchKey, PathKey
from timonel.serving.telemetry.monitor import (
    RECENT,
    Monitor,
    stages_of,
)
from timonel.serving.telemetry.resources import Usage


class Clock:
    """Time that passes when told to."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now

    def after(self, seconds):
        self.now += seconds


def samples_of(monitor, name):
    families = text_string_to_metric_families(monitor.page().decode())
    # The parser appends _total to what a counter is called.
    return {
        (s.name.removeprefix(name).removesuffix("_total"), *sorted(s.labels.items())): s.value
        for family in families
        for s in family.samples
        if s.name.startswith(name)
    }


def value(monitor, name, **labels):
    found = samples_of(monitor, name)
    return found.get(("", *sorted(labels.items())))


def answered(monitor, clock, code=Code.OK, entrypoint="REST", api="predict", version=3):
    observation = monitor.begin(entrypoint, api, "m")
    clock.after(0.003)
    if version is not None:
        observation.version = version
        observation.signature = DEFAULT_SIGNATURE
        observation.rows += 2
        began = clock.now
        clock.after(0.014)
        measure(observation, began, clock.now, 0.010)
    clock.after(0.020)
    monitor.end(observation, code)
    return observation


def test_stages_follow_each_other_and_add_up():
    clock = Clock()
    observation = answered(Monitor(clock=clock), clock)
    stages = stages_of(observation, clock.now)
    assert stages == pytest.approx((0.003, 0.004, 0.010, 0.020))
    assert sum(stages) == pytest.approx(clock.now - observation.began)


def test_a_request_without_a_model_is_all_decoding():
    observation = Observation("REST", "predict", "m", 5.0)
    assert stages_of(observation, 7.0) == (2.0, 0.0, 0.0, 0.0)


def test_a_request_may_need_several_runs():
    observation = Observation("GRPC", "MultiInference", "m", 0.0)
    measure(observation, 1.0, 2.0)
    measure(observation, 2.5, 4.5, 1.5)
    assert stages_of(observation, 5.0) == (1.5, 0.5, 2.5, 0.5)


def test_runs_at_the_same_time_count_once():
    observation = Observation("GRPC", "MultiInference", "m", 0.0)
    measure(observation, 1.0, 3.0, 2.0)
    measure(observation, 1.0, 4.0, 1.0)
    measure(observation, 1.0, 3.5, 1.0)
    assert stages_of(observation, 5.0) == (1.0, 0.0, 3.0, 1.0)


def test_tensorflow_servings_names_count_what_it_counts():
    clock = Clock()
    monitor = Monitor(clock=clock)
    answered(monitor, clock)
    answered(monitor, clock, version=4)
    answered(monitor, clock, Code.NOT_FOUND, version=None)
    answered(monitor, clock, api="Predict", entrypoint="GRPC")
    answered(monitor, clock, api="GetModelMetadata", entrypoint="GRPC")
    answered(monitor, clock, api="MultiInference", entrypoint="GRPC")
    count = ":tensorflow:serving:request_count"
    assert value(monitor, count, model_name="m", status="OK") == 3
    assert value(monitor, count, model_name="m", status="NOT_FOUND") == 1
    latency = samples_of(monitor, ":tensorflow:serving:request_latency")
    of_rest = (("API", "predict"), ("entrypoint", "REST"), ("model_name", "m"))
    assert latency["_count", *of_rest] == 2
    assert latency["_sum", *of_rest] == pytest.approx(2 * 37_000)
    assert ("le", "10") in {label for key in latency for label in key[1:]}
    runtime = samples_of(monitor, ":tensorflow:serving:runtime_latency")
    key = (("API", "predict"), ("model_name", "m"), ("runtime", "TF1"))
    assert runtime["_sum", *key] == pytest.approx(2 * 14_000)
    assert value(monitor, ":tensorflow:serving:request_example_count_total", model="m") == 2


def test_own_names_tell_versions_signatures_and_stages_apart():
    clock = Clock()
    monitor = Monitor(clock=clock)
    answered(monitor, clock)
    answered(monitor, clock, Code.INTERNAL)
    labels = {
        "model": "m",
        "version": "3",
        "signature": DEFAULT_SIGNATURE,
        "api": "predict",
        "entrypoint": "rest",
    }
    assert value(monitor, "timonel_requests_total", **labels, code="OK") == 1
    assert value(monitor, "timonel_requests_total", **labels, code="INTERNAL") == 1
    labels.pop("api")
    stages = samples_of(monitor, "timonel_request_stage_seconds_sum")
    sums = {
        stage: stages["", *sorted({**labels, "stage": stage}.items())]
        for stage in ("decode", "queue", "compute", "encode")
    }
    assert sums == pytest.approx({"decode": 0.006, "queue": 0.008, "compute": 0.02, "encode": 0.04})


def test_batches_loads_warmups_and_logs(monkeypatch):
    usage = Usage({"server": 5}, {"compute": 2.5})
    monkeypatch.setattr("timonel.serving.telemetry.monitor.measure", lambda: usage)
    catalogue = Catalogue({"m": {}})
    available = tuple(VersionStatus(number, VersionState.AVAILABLE) for number in (1, 2))
    catalogue.publish("m", {}, available)
    monitor = Monitor(catalogue)
    key = BatchKey("m", 3, DEFAULT_SIGNATURE)
    monitor.batch(key, BatchObservation((0.001, 0.003), 0.01, 6, 2, DEFAULT_SIGNATURE, False))
    monitor.loaded(PathKey("m", 3, "/models/m/3", Code.OK), 2.0)
    monitor.loaded(PathKey("m", 4, "/models/m/4", Code.DATA_LOSS), 1.0)
    monitor.warmed(PathKey("m", 3, "/models/m/3", Code.OK), 0.5, records=7)
    monitor.logged("m", Code.OK)
    of_batch = {"model": "m", "version": "3", "signature": DEFAULT_SIGNATURE}
    assert value(monitor, "timonel_batch_padded_rows_total", **of_batch) == 2
    assert value(monitor, "timonel_batch_rows_sum", **of_batch) == 6
    assert value(monitor, "timonel_batch_queue_seconds_sum", **of_batch) == pytest.approx(0.004)
    assert value(monitor, "timonel_versions", model="m", state="AVAILABLE") == 2
    assert value(monitor, "timonel_memory_bytes", process="server") == 5
    assert value(monitor, "timonel_cpu_seconds_total", process="compute") == 2.5
    batching = ":tensorflow:serving:batching_session:"
    assert value(monitor, f"{batching}wrapped_run_count") == 1
    assert value(monitor, f"{batching}queuing_latency_count") == 2
    assert value(monitor, f"{batching}padding_size_sum", execution_batch_size="8") == 2
    loads = ":tensorflow:cc:saved_model:load_attempt_count"
    assert value(monitor, loads, model_path="/models/m/3", status="success") == 1
    assert value(monitor, loads, model_path="/models/m/4", status="fail") == 1
    warmed = ":tensorflow:serving:model_warmup_records_read"
    assert value(monitor, warmed, model_path="/models/m/3", status="OK") == 7
    logged = ":tensorflow:serving:request_log_count"
    assert value(monitor, logged, model_name="m", status_code="OK") == 1


@pytest.mark.slow
def test_names_that_clients_make_up_do_not_fill_the_memory():
    monitor = Monitor()
    for number in range(300):
        monitor.end(monitor.begin("REST", "predict", f"made-up-{number}"), Code.NOT_FOUND)
    monitor.end(monitor.begin("REST", "predict", "x" * 10_000), Code.NOT_FOUND)
    counts = samples_of(monitor, ":tensorflow:serving:request_count")
    assert len(counts) == 257
    assert (
        value(
            monitor, ":tensorflow:serving:request_count", model_name="(other)", status="NOT_FOUND"
        )
        == 300 - 256 + 1
    )


def test_the_last_requests_are_kept_and_no_more():
    clock = Clock()
    monitor = Monitor(clock=clock)
    for _ in range(RECENT + 3):
        answered(monitor, clock)
    recent = monitor.recent()
    assert len(recent) == RECENT
    assert (recent[-1].key.version, recent[-1].rows) == (3, 2)
    assert recent[-1].seconds == pytest.approx(0.037)


def test_threads_lose_no_count():
    clock = Clock()
    monitor = Monitor(clock=clock)

    def work():
        for _ in range(500):
            monitor.end(monitor.begin("REST", "predict", "m"))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert value(monitor, ":tensorflow:serving:request_count", model_name="m", status="OK") == 2000


def test_a_call_leaves_its_marks_in_the_observation(monkeypatch):
    import numpy as np

    catalogue = Catalogue({"m": {}})
    catalogue.publish(
        "m",
        {3: Servable("m", 3, scheduled(FakeModel(2.0)))},
        (VersionStatus(3, VersionState.AVAILABLE),),
    )
    monitor = Monitor()
    observation = monitor.begin("REST", "predict", "m")
    with contextlib.closing(Call(catalogue.acquire(ModelSpec("m")), observation)) as call:
        call.predict(call.signature(""), {"x": np.ones(3, np.float32)})
    assert (observation.version, observation.signature) == (3, DEFAULT_SIGNATURE)
    assert observation.rows == 3
    assert 0 < observation.queue_s < observation.run_s, "its thread was to be woken"
    assert observation.began <= observation.computed <= time.monotonic()
    with (
        pytest.raises(StatusError),
        contextlib.closing(Call(catalogue.acquire(ModelSpec("m", 9)), observation)),
    ):
        pass

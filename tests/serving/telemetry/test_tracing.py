from __future__ import annotations

import importlib.util
import time

import pytest

from timonel.errors import MissingExtraError
from timonel.serving.inference.context import Correlation
from timonel.serving.inference.flow import measure
from timonel.serving.status import Code
from timonel.serving.telemetry.monitor import Monitor
from timonel.serving.telemetry.tracing import OpenTelemetryTracer, make_tracer

memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"


@pytest.fixture
def exporter():
    return memory.InMemorySpanExporter()


@pytest.fixture
def monitor(exporter):
    tracer, provider = make_tracer(exporter)
    yield Monitor(tracer=tracer)
    provider.shutdown()


def finished(monitor, exporter, parent=None, code=Code.OK):
    observation = monitor.begin("REST", "predict", "m", parent)
    observation.version, observation.signature, observation.rows = 3, "serving_default", 2
    began = time.monotonic()
    measure(observation, began, began + 0.004, 0.003)
    observation.computed = began
    monitor.end(observation, code)
    monitor._tracer._tracer.span_processor.force_flush()
    return {span.name: span for span in exporter.get_finished_spans()}


def test_a_request_is_a_span_and_its_stages_are_its_children(monitor, exporter):
    spans = finished(monitor, exporter)
    assert set(spans) >= {"m/predict", "queue", "compute"}
    root = spans["m/predict"]
    assert root.parent is None
    assert root.kind.name == "SERVER"
    assert root.attributes["timonel.version"] == 3
    assert root.attributes["timonel.status"] == "OK"
    assert root.resource.attributes["service.name"] == "timonel"
    assert abs(root.start_time / 1e9 - time.time()) < 60
    for name in ("queue", "compute"):
        assert spans[name].parent.span_id == root.context.span_id
    compute = spans["compute"]
    assert compute.end_time - compute.start_time == pytest.approx(3_000_000, abs=1000)


def test_a_clients_trace_goes_on(monitor, exporter):
    spans = finished(monitor, exporter, Correlation(f"00-{TRACE}-{SPAN}-01", "vendor=1"))
    root = spans["m/predict"]
    assert f"{root.context.trace_id:032x}" == TRACE
    assert f"{root.parent.span_id:016x}" == SPAN
    assert root.context.trace_state.get("vendor") == "1"


@pytest.mark.parametrize("header", ["", "nonsense", f"00-{'0' * 32}-{SPAN}-01"])
def test_a_damaged_parent_starts_a_trace_of_its_own(monitor, exporter, header):
    assert finished(monitor, exporter, Correlation(header))["m/predict"].parent is None


def test_a_client_that_does_not_sample_is_heeded(monitor, exporter):
    assert not finished(monitor, exporter, Correlation(f"00-{TRACE}-{SPAN}-00"))


def test_a_failure_shows(monitor, exporter):
    root = finished(monitor, exporter, code=Code.INTERNAL)["m/predict"]
    assert root.status.status_code.name == "ERROR"
    assert root.attributes["timonel.status"] == "INTERNAL"


def test_without_opentelemetry_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError) as caught:
        make_tracer()
    assert "timonel[otel]" in caught.value.hint


def test_a_service_is_named_by_the_variable(monkeypatch, exporter):
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    tracer, provider = make_tracer(exporter)
    assert isinstance(tracer, OpenTelemetryTracer)
    assert provider.resource.attributes["service.name"] == "mine"
    provider.shutdown()

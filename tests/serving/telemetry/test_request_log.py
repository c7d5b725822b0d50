from __future__ import annotations

import contextlib
import errno
import time

import numpy as np
import pytest

from tests.serving.inference.test_warmup import Everything
from timonel.data.records import read_records
from timonel.models.schema import WARMUP_FILE
from timonel.serving.batching.scheduling import scheduled
from timonel.serving.inference.context import LoggedRequest, Observation
from timonel.serving.inference.flow import Call
from timonel.serving.inference.warmup import warm_up
from timonel.serving.manager.catalogue import Catalogue, ModelSpec, Servable
from timonel.serving.protos.messages import example_pb2, prediction_log_pb2
from timonel.serving.settings.models import ModelSettings, RequestLogSettings
from timonel.serving.signature import DEFAULT_SIGNATURE, PREDICT, Signature
from timonel.serving.status import Code
from timonel.serving.telemetry import request_log as log_module
from timonel.serving.telemetry.request_log import (
    PART,
    RequestLog,
    RotatingFile,
    encode_exchange,
)

X = np.array([1.5, 2.5], np.float32)
SIGNATURES = Everything().signatures


class Counts(list):
    """What a log told of each exchange."""

    def __call__(self, model, code):
        self.append(code)


@pytest.fixture
def prefix(tmp_path):
    return tmp_path / "logs" / "m"


def exchange(x=X, model="m"):
    return LoggedRequest(model, 3, SIGNATURES[DEFAULT_SIGNATURE], "predict", {"x": x}, {"y": 2 * x})


def settings(prefix, rate=1.0, **more):
    return RequestLogSettings(filename_prefix=str(prefix), sampling_rate=rate, **more)


def served(name, request_log=None):
    return ModelSettings(name=name, base_path="/m", request_log=request_log)


def log_of(settings, count, **options):
    log = RequestLog(count, **options)
    log.configure([served("m", settings)])
    return log


def logs(prefix):
    """Return what is in the files that have their names."""
    files = sorted(prefix.parent.glob("*.tfrecord"))
    return [
        prediction_log_pb2.PredictionLog.FromString(payload)
        for path in files
        for payload in read_records(path)
    ]


def test_what_is_logged_warms_up_and_can_be_read(prefix, tmp_path):
    model, counts = Everything(), Counts()
    catalogue = Catalogue()
    catalogue.publish("m", {3: Servable("m", 3, scheduled(model))}, ())
    log = log_of(settings(prefix), counts)
    log.start()
    with contextlib.closing(
        Call(catalogue.acquire(ModelSpec("m")), Observation("GRPC", "Predict", "m"), log)
    ) as call:
        call.predict(call.signature(""), {"x": X}, ["y"])
    examples = np.array([example_pb2.Example().SerializeToString()], object)
    for name, api in (("sort", "classify"), ("price", "Regress"), ("price", "MultiInference")):
        with contextlib.closing(
            Call(catalogue.acquire(ModelSpec("m")), Observation("GRPC", api, "m"), log)
        ) as call:
            call.predict(call.signature(name), {"inputs": examples})
    log.stop()
    assert counts == [Code.OK] * 4
    predicted, sorted_, priced, inferred = logs(prefix)
    assert predicted.log_metadata.model_spec.version.value == 3
    assert predicted.log_metadata.sampling_config.sampling_rate == 1
    assert list(predicted.predict_log.request.inputs["x"].float_val) == X.tolist()
    assert list(predicted.predict_log.request.output_filter) == ["y"]
    assert list(predicted.predict_log.response.outputs["y"].float_val) == X.tolist()
    assert len(sorted_.classify_log.response.result.classifications[0].classes) == 2
    assert len(priced.regress_log.response.result.regressions) == 1
    assert inferred.WhichOneof("log_type") == "regress_log"
    asked = list(model.asked)
    model.asked.clear()
    (tmp_path / WARMUP_FILE).parent.mkdir()
    (path,) = prefix.parent.glob("*.tfrecord")
    path.rename(tmp_path / WARMUP_FILE)
    warm_up(scheduled(model), tmp_path)
    assert model.asked == asked


@pytest.mark.parametrize(
    ("outputs", "kind"),
    [({"outputs": X}, "regress_log"), ({"scores": np.ones((1, 2), np.float32)}, "classify_log")],
)
def test_a_task_is_logged_by_what_it_asked_for_whatever_its_signature_says(outputs, kind):
    predict = Signature("", {}, {}, PREDICT)  # of any signature that TensorFlow 2 has exported
    examples = {"inputs": np.array([b""], object)}
    task = LoggedRequest("m", 3, predict, "MultiInference", examples, outputs)
    log = prediction_log_pb2.PredictionLog.FromString(encode_exchange(task, 1.0))
    assert log.WhichOneof("log_type") == kind


def test_a_share_is_kept_and_models_without_a_log_are_left_alone(prefix):
    numbers = iter([0.1, 0.3, 0.2])
    models = [served("m", settings(prefix, 0.25)), served("other")]
    log = RequestLog(Counts(), chance=lambda: next(numbers))
    log.configure(models)
    assert [log.wants("m"), log.wants("m"), log.wants("m")] == [True, False, True]
    assert not log.wants("other")
    log.configure(models[1:])
    assert not log.wants("m")


def test_a_full_queue_drops_at_once_and_counts(prefix, monkeypatch):
    monkeypatch.setattr(log_module, "_QUEUED_BYTES", 3 * 16)
    counts = Counts()
    log = log_of(settings(prefix), counts)
    began = time.monotonic()
    for _ in range(5):
        log.record(exchange())
    assert time.monotonic() - began < 1
    assert counts == [Code.RESOURCE_EXHAUSTED] * 2
    log.start()
    log.stop()
    assert counts[2:] == [Code.OK] * 3
    assert len(logs(prefix)) == 3


def test_an_array_may_change_after_it_was_recorded(prefix):
    log = log_of(settings(prefix), Counts())
    x = X.copy()
    log.record(exchange(x))
    x[:] = 0
    log.start()
    log.stop()
    (logged,) = logs(prefix)
    assert list(logged.predict_log.request.inputs["x"].float_val) == X.tolist()


def test_a_full_disk_drops_counts_and_recovers(prefix, monkeypatch, caplog):
    now, counts = [0.0], Counts()
    log = log_of(settings(prefix), counts, clock=lambda: now[0])
    full = [True]
    real = RotatingFile.write

    def write(self, payload):
        if full[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(self, payload)

    monkeypatch.setattr(RotatingFile, "write", write)
    entries = [log_module._Entry(exchange(), settings(prefix), 0) for _ in range(4)]
    assert log._write(entries[0]) is Code.RESOURCE_EXHAUSTED
    full[0] = False
    assert log._write(entries[1]) is Code.RESOURCE_EXHAUSTED
    now[0] = 60.0
    assert log._write(entries[2]) is Code.OK
    log.start()
    log.stop()
    assert len(logs(prefix)) == 1
    assert caplog.messages == [f"Cannot log requests to {prefix}: No space left on device"]


def test_an_answer_that_cannot_be_written_down_is_counted(prefix, caplog):
    counts = Counts()
    log = log_of(settings(prefix), counts)
    log.record(LoggedRequest("m", 3, SIGNATURES["sort"], "classify", {"inputs": X}, {}))
    log.record(exchange())
    log.start()
    log.stop()
    assert counts == [Code.INTERNAL, Code.OK]


# Files


def test_files_are_closed_at_their_size_and_then_have_their_name(prefix):
    file = RotatingFile(str(prefix), max_bytes=50, max_age_s=60)
    file.write(b"x" * 20)
    assert [path.suffix for path in prefix.parent.iterdir()] == [PART]
    file.write(b"y" * 20)
    file.write(b"z" * 20)
    file.close()
    first, second = sorted(prefix.parent.glob("*.tfrecord"))
    assert [*read_records(first), *read_records(second)] == [b"x" * 20, b"y" * 20, b"z" * 20]


def test_files_are_closed_at_their_age(prefix):
    now = [0.0]
    file = RotatingFile(str(prefix), 1000, 60, clock=lambda: now[0])
    file.write(b"x")
    now[0] = 59.0
    file.close_if_old()
    assert not list(prefix.parent.glob("*.tfrecord"))
    now[0] = 60.0
    file.close_if_old()
    file.close_if_old()
    assert len(list(prefix.parent.glob("*.tfrecord"))) == 1


class Filling:
    """A file on a disk that becomes full in the middle of a record."""

    def __init__(self, file):
        self._file = file
        self.room = 0

    def write(self, piece):
        if self.room == 0:
            self._file.write(piece[: len(piece) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")
        self.room -= 1
        return self._file.write(piece)

    def __getattr__(self, name):
        return getattr(self._file, name)


def test_a_record_that_is_cut_off_is_taken_back(prefix):
    file = RotatingFile(str(prefix), 1000, 60)
    file.write(b"first")
    whole, file._file = file._file, Filling(file._file)
    with pytest.raises(OSError, match="No space"):
        file.write(b"second")
    file._file = whole
    file.write(b"third")
    file.close()
    (path,) = prefix.parent.glob("*.tfrecord")
    assert list(read_records(path)) == [b"first", b"third"]


def test_a_short_write_counts_as_a_full_disk(prefix):
    file = RotatingFile(str(prefix), 1000, 60)
    file.write(b"first")
    whole = file._file

    class Short:
        def write(self, piece):
            return whole.write(piece[:1])

        def __getattr__(self, name):
            return getattr(whole, name)

    file._file = Short()
    with pytest.raises(OSError, match="No space"):
        file.write(b"second")
    file._file = whole
    file.close()
    (path,) = prefix.parent.glob("*.tfrecord")
    assert list(read_records(path)) == [b"first"]


def test_an_empty_file_is_not_kept(prefix, monkeypatch):
    file = RotatingFile(str(prefix), 1000, 60)
    file._open()
    file.close()
    assert not list(prefix.parent.iterdir())


def test_logs_are_the_same_for_the_same_exchange():
    assert encode_exchange(exchange(), 0.5) == encode_exchange(exchange(), 0.5)

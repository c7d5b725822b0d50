from __future__ import annotations

import numpy as np
import pytest

from timonel.data.records import frame
from timonel.models.schema import WARMUP_FILE
from timonel.serving.batching.scheduling import scheduled
from timonel.serving.inference.warmup import warm_up
from timonel.serving.protos.messages import prediction_log_pb2
from timonel.serving.protos.tensors import to_proto
from timonel.serving.runtimes.base import LoadedModel
from timonel.serving.signature import DEFAULT_SIGNATURE, STRING, Signature, TensorSpec
from timonel.serving.status import Code, StatusError

TWO = np.array([1.0, 1.0], np.float32)


class Everything(LoadedModel):
    """Predicts, classifies and regresses, and remembers what it was asked."""

    def __init__(self):
        examples = {"inputs": TensorSpec("examples:0", STRING, (-1,))}
        scores = {"scores": TensorSpec("scores:0", "DT_FLOAT", (-1, 2))}
        values = {"outputs": TensorSpec("values:0", "DT_FLOAT", (-1,))}
        x = {"x": TensorSpec("x:0", "DT_FLOAT", (-1,))}
        self.signatures = {
            DEFAULT_SIGNATURE: Signature(DEFAULT_SIGNATURE, x, {"y": TensorSpec("y", "DT_FLOAT")}),
            "sort": Signature("sort", examples, scores, "tensorflow/serving/classify"),
            "price": Signature("price", examples, values, "tensorflow/serving/regress"),
        }
        self.asked = []
        self.closed = False

    def run(self, signature, inputs, outputs=None):
        (given,) = inputs.values()
        self.asked.append((signature, given.tolist()))
        if signature == DEFAULT_SIGNATURE:
            if given.flat[0] < 0:
                raise StatusError(Code.INTERNAL, "a defect")
            return {"y": given}
        if signature == "sort":
            return {"scores": np.zeros((len(given), 2), np.float32)}
        return {"outputs": np.zeros(len(given), np.float32)}

    def close(self):
        self.closed = True


@pytest.fixture
def model():
    return Everything()


def predict_log(x=TWO, signature=""):
    log = prediction_log_pb2.PredictionLog()
    request = log.predict_log.request
    # Neither is looked at.
    request.model_spec.name = "another"
    request.model_spec.version.value = 17
    request.model_spec.signature_name = signature
    request.inputs["x"].CopyFrom(to_proto(x))
    return log


def classify_log():
    log = prediction_log_pb2.PredictionLog()
    log.classify_log.request.model_spec.signature_name = "sort"
    log.classify_log.request.input.example_list.examples.add()
    return log


def regress_log():
    log = prediction_log_pb2.PredictionLog()
    log.regress_log.request.model_spec.signature_name = "price"
    given = log.regress_log.request.input.example_list_with_context
    given.context.features.feature["age"].int64_list.value.append(3)
    given.examples.add()
    given.examples.add()
    return log


def multi_inference_log():
    log = prediction_log_pb2.PredictionLog()
    request = log.multi_inference_log.request
    for name, kind in (("sort", "classify"), ("price", "regress")):
        task = request.tasks.add(method_name=f"tensorflow/serving/{kind}")
        task.model_spec.name = "m"
        task.model_spec.signature_name = name
    request.input.example_list.examples.add()
    return log


def write(folder, *payloads):
    path = folder / WARMUP_FILE
    path.parent.mkdir(exist_ok=True)
    with path.open("wb") as file:
        for payload in payloads:
            is_raw = isinstance(payload, bytes)
            file.writelines(frame(payload if is_raw else payload.SerializeToString()))
    return path


def test_every_kind_is_replayed(model, tmp_path):
    write(
        tmp_path,
        predict_log(),
        classify_log(),
        regress_log(),
        multi_inference_log(),
        prediction_log_pb2.PredictionLog(),
    )
    seen = []
    warm_up(scheduled(model), tmp_path, observe=lambda *each: seen.append(each))
    asked = [signature for signature, _ in model.asked]
    assert asked == [DEFAULT_SIGNATURE, "sort", "price", "sort", "price"]
    _, with_context = model.asked[2]
    assert len(with_context) == 2
    assert b"age" in with_context[0]
    ((code, _, records),) = seen
    assert (records, code) == (5, Code.OK)


@pytest.mark.parametrize(("iterations", "times"), [(0, 1), (1, 1), (3, 3)])
def test_requests_are_repeated_as_told(model, tmp_path, iterations, times):
    write(tmp_path, predict_log(), classify_log())
    warm_up(scheduled(model), tmp_path, iterations)
    assert len(model.asked) == 2 * times


def test_without_the_file_nothing_happens(model, tmp_path):
    seen = []
    warm_up(scheduled(model), tmp_path, observe=lambda *each: seen.append(each))
    assert not model.asked
    assert not seen


def test_a_thousand_records_are_enough(model, tmp_path):
    record = predict_log().SerializeToString()
    path = write(tmp_path, *[record] * 1000)
    warm_up(scheduled(model), tmp_path)
    write(tmp_path, *[record] * 1001)
    with pytest.raises(StatusError) as caught:
        warm_up(scheduled(model), tmp_path)
    assert str(caught.value) == (
        f"INVALID_ARGUMENT: Number of warmup records exceeds the maximum (1000) at {path}"
    )


def refused(model, folder):
    seen = []
    with pytest.raises(StatusError) as caught:
        warm_up(scheduled(model), folder, observe=lambda *each: seen.append(each))
    assert [code for code, _, _ in seen] == [caught.value.code]
    return caught.value


@pytest.mark.parametrize("change", [lambda c: c[:-3], lambda c: b"x" * 40, lambda c: c[:20] + b"!"])
def test_what_is_no_tfrecord_is_data_loss(model, tmp_path, change):
    path = write(tmp_path, predict_log())
    path.write_bytes(change(path.read_bytes()))
    error = refused(model, tmp_path)
    assert error.code is Code.DATA_LOSS
    assert error.message.endswith(". Please verify your warmup data is in TFRecord format.")


def test_what_is_no_prediction_log_is_refused(model, tmp_path):
    path = write(tmp_path, b"\xff\xff\xff")
    error = refused(model, tmp_path)
    assert error.code is Code.INVALID_ARGUMENT
    assert error.message.startswith("Failed to parse warmup record: ")
    assert error.message.endswith(f" from {path}")


@pytest.mark.parametrize(("kind", "number"), [("session_run_log", 5), ("predict_streamed_log", 7)])
def test_kinds_that_cannot_be_replayed(model, tmp_path, kind, number):
    log = prediction_log_pb2.PredictionLog()
    getattr(log, kind).SetInParent()
    write(tmp_path, log)
    assert str(refused(model, tmp_path)) == (
        f"UNIMPLEMENTED: Unsupported log_type for warmup: {number}"
    )


def test_a_signature_that_is_not_there_fails(model, tmp_path):
    write(tmp_path, predict_log(signature="nope"))
    assert refused(model, tmp_path).code is Code.FAILED_PRECONDITION

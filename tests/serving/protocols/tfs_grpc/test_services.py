from __future__ import annotations

import numpy as np
import pytest

from tests.serving.protocols.tfs_grpc.conftest import Lengths, refusal, running
from timonel.data.examples import encode_example
from timonel.serving.protocols.tfs_grpc import services
from timonel.serving.protos.messages import (
    classification_pb2,
    get_model_metadata_pb2,
    inference_pb2,
    predict_pb2,
    regression_pb2,
)
from timonel.serving.protos.tensors import from_proto, to_proto
from timonel.serving.settings.server import GrpcSettings
from timonel.serving.signature import CLASSIFY, REGRESS

X = np.array([1.5, 3.0], np.float32)
SHORT, LONG = encode_example({"a": 1}), encode_example({"a": list(range(9))})


def predict_request(signature="", **inputs):
    request = predict_pb2.PredictRequest()
    request.model_spec.name = "m"
    request.model_spec.signature_name = signature
    for name, value in inputs.items():
        request.inputs[name].CopyFrom(to_proto(value))
    return request


def test_predict_answers_in_typed_fields(served):
    response = served.Predict(predict_request(x=X))
    assert list(response.outputs["y"].float_val) == [3.0, 6.0]
    assert list(response.outputs["text"].string_val) == [b"\xff\0"]
    assert not any(proto.tensor_content for proto in response.outputs.values())
    spec = response.model_spec
    assert (spec.name, spec.version.value, spec.signature_name) == ("m", 4, "serving_default")


def test_a_label_is_answered_with_its_version(served):
    request = predict_request("strict", x=X, k=X)
    request.model_spec.version_label = "stable"
    spec = served.Predict(request).model_spec
    assert (spec.version.value, spec.version_label, spec.signature_name) == (3, "", "strict")


def test_outputs_can_be_chosen(served):
    request = predict_request(x=X)
    request.output_filter.append("text")
    assert list(served.Predict(request).outputs) == ["text"]


def test_tensor_content_on_request():
    settings = GrpcSettings(tensor_content=True)
    with running(settings=settings) as client:
        response = client.Predict(predict_request(x=X))
    assert response.outputs["y"].tensor_content == (2 * X).tobytes()
    assert not response.outputs["y"].float_val
    assert from_proto("text", response.outputs["text"]).tolist() == [b"\xff\0"]


def _without_spec(request):
    request.ClearField("model_spec")


def _without_name(request):
    request.model_spec.name = ""


def _another_model(request):
    request.model_spec.name = "n"


def _another_version(request):
    request.model_spec.version.value = 7


def _a_label(request):
    request.model_spec.version_label = "new"


def _a_label_of_what_is_not_loaded(request):
    request.model_spec.version_label = "gone"


def _a_signature(request):
    request.model_spec.signature_name = "s"


def _another_name(request):
    request.inputs["z"].CopyFrom(request.inputs.pop("x"))


def _an_extra_name(request):
    request.model_spec.signature_name = ""
    request.inputs["z"].CopyFrom(request.inputs.pop("k"))


def _too_few(request):
    del request.inputs["k"]
    request.inputs["x"].tensor_content = b"torn"


def _torn(request):
    request.inputs["x"].tensor_content = b"torn"


def _unknown_output(request):
    request.output_filter.append("z")


def _twice(request):
    request.output_filter.extend(["y", "y"])


def _a_double(request):
    request.inputs["x"].CopyFrom(to_proto(X.astype(np.float64)))


def test_inputs_that_the_signature_lacks_are_not_decoded(served, monkeypatch):
    decoded = []

    def recorded(alias, proto):
        decoded.append(alias)
        return from_proto(alias, proto)

    monkeypatch.setattr(services, "from_proto", recorded)
    request = predict_request("strict", x=X, k=X, z=X)
    code, message = refusal(served.Predict, request)
    assert (code, message[:37]) == ("INVALID_ARGUMENT", "input size does not match signature: ")
    assert decoded == []


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        (_without_spec, "INVALID_ARGUMENT", "Missing ModelSpec"),
        (_without_name, "INVALID_ARGUMENT", "ModelSpec has no name specified."),
        (_another_model, "NOT_FOUND", "Servable not found for request: Latest(n)"),
        (_another_version, "NOT_FOUND", "Servable not found for request: Specific(m, 7)"),
        (_a_label, "INVALID_ARGUMENT", "Unrecognized servable version label: new"),
        (
            _a_label_of_what_is_not_loaded,
            "NOT_FOUND",
            "Servable not found for request: Specific(m, 9)",
        ),
        (_a_signature, "FAILED_PRECONDITION", 'Serving signature key "s" not found.'),
        (
            _another_name,
            "INVALID_ARGUMENT",
            (
                "Signature input alias: x(feed name: x:0) not found in request and no default "
                "value provided. Inputs expected to be in the request {k,z}, or default input "
                "alias set: "
            ),
        ),
        (
            _an_extra_name,
            "INVALID_ARGUMENT",
            "Inputs contains invalid name. Used request inputs: x, request input: x,z",
        ),
        (
            _too_few,
            "INVALID_ARGUMENT",
            (
                "input size does not match signature: 1!=2 len({x}) != len({k,x}). "
                "Sent extra: {}. Missing but required: {k}."
            ),
        ),
        (_torn, "INVALID_ARGUMENT", "tensor parsing error: x"),
        (
            _unknown_output,
            "INVALID_ARGUMENT",
            (
                "output tensor alias not found in signature: z "
                "Outputs expected to be in the set {y}."
            ),
        ),
        (_twice, "INVALID_ARGUMENT", "duplicate output tensor alias: y"),
        (
            _a_double,
            "INVALID_ARGUMENT",
            "Input x has the wrong type: expected DT_FLOAT, got DT_DOUBLE",
        ),
    ],
)
def test_predict_refusals(served, change, code, message):
    request = predict_request("strict", x=X, k=X)
    change(request)
    assert refusal(served.Predict, request) == (code, message)


def test_long_error_texts_are_cut_after_so_many_bytes(served):
    code, message = refusal(served.Predict, predict_request(x=-2 * np.ones(1, np.float32)))
    assert (code, message) == ("DATA_LOSS", "\N{EURO SIGN}" * 341 + "...TRUNCATED")


def test_a_request_that_is_no_proto(served):
    raw = served.channel.unary_unary("/tensorflow.serving.PredictionService/Predict")
    assert refusal(raw, b"\xff\xff") == ("INTERNAL", "Exception deserializing request!")


def test_a_deadline_travels_to_the_run_and_ends_the_waiting(served):
    request = predict_request(x=X)
    assert served.Predict(request, timeout=20).model_spec.name == "m"
    model = Lengths()
    with running(model) as client:
        blocked = predict_request(x=-np.ones(1, np.float32))
        assert refusal(client.Predict, blocked, timeout=0.2)[0] == "DEADLINE_EXCEEDED"
        model.release.set()


def examples_request(kind, signature, *examples, context=b""):
    request = kind()
    request.model_spec.name = "m"
    request.model_spec.signature_name = signature
    _put(request.input, examples, context)
    return request


def _put(target, examples, context):
    if context:
        target = target.example_list_with_context
        target.context.ParseFromString(context)
    else:
        target = target.example_list
    for example in examples:
        target.examples.add().ParseFromString(example)


def test_classify(served):
    kind = classification_pb2.ClassificationRequest
    response = served.Classify(examples_request(kind, "classes", SHORT, LONG))
    found = [
        [(entry.label, entry.score) for entry in row.classes]
        for row in response.result.classifications
    ]
    assert found == [[("short", 1), ("long", len(SHORT))], [("short", 1), ("long", len(LONG))]]
    spec = response.model_spec
    assert (spec.name, spec.version.value, spec.signature_name) == ("m", 4, "classes")


def test_regress_with_a_context(served):
    kind = regression_pb2.RegressionRequest
    response = served.Regress(examples_request(kind, "value", SHORT, LONG, context=LONG))
    values = [entry.value for entry in response.result.regressions]
    assert values == [len(LONG + SHORT), len(LONG + LONG)]
    assert response.model_spec.signature_name == "value"


@pytest.mark.parametrize(
    ("signature", "examples", "code", "message"),
    [
        ("s", (), "INVALID_ARGUMENT", "No signature was found with the name: s"),
        ("", (SHORT,), "INVALID_ARGUMENT", "Expected one input Tensor."),
        ("classes", (), "INVALID_ARGUMENT", "Input is empty."),
    ],
)
def test_classify_refusals(served, signature, examples, code, message):
    request = examples_request(classification_pb2.ClassificationRequest, signature, *examples)
    assert refusal(served.Classify, request) == (code, message)


def infer_request(*tasks, examples=(SHORT,)):
    request = inference_pb2.MultiInferenceRequest()
    for model, signature, method in tasks:
        task = request.tasks.add(method_name=method)
        task.model_spec.name = model
        task.model_spec.signature_name = signature
    _put(request.input, examples, b"")
    return request


def test_multi_inference(served):
    request = infer_request(("m", "value", REGRESS), ("m", "classes", CLASSIFY))
    request.tasks[0].model_spec.version.value = 3
    request.tasks[1].model_spec.version.value = 77
    first, second = served.MultiInference(request).results
    assert [entry.value for entry in first.regression_result.regressions] == [len(SHORT)]
    assert second.classification_result.classifications[0].classes[0].label == "short"
    for result, name in ((first, "value"), (second, "classes")):
        spec = result.model_spec
        assert (spec.name, spec.version.value, spec.signature_name) == ("m", 3, name)


def test_multi_inference_refusals(served):
    assert refusal(served.MultiInference, infer_request()) == (
        "INVALID_ARGUMENT",
        "ModelSpec has no name specified.",
    )
    assert refusal(served.MultiInference, infer_request(("m", "value", "x"))) == (
        "UNIMPLEMENTED",
        "Unsupported signature method_name: x",
    )


def test_methods_are_compared_if_asked():
    settings = GrpcSettings(check_method_names=True)
    kind = classification_pb2.ClassificationRequest
    with running(settings=settings) as client:
        assert client.Predict(predict_request(x=X)).outputs
        code, message = refusal(client.Predict, predict_request("strict", x=X, k=X))
        assert (code, message) == (
            "INTERNAL",
            (
                "Expected prediction signature method_name to be one of "
                "{tensorflow/serving/predict, tensorflow/serving/classify, "
                "tensorflow/serving/regress}. Was: "
            ),
        )
        assert refusal(client.Classify, examples_request(kind, "value", SHORT))[1] == (
            f"Expected classification signature method_name to be {CLASSIFY}. Was: {REGRESS}"
        )


def test_metadata(served):
    request = get_model_metadata_pb2.GetModelMetadataRequest()
    assert refusal(served.GetModelMetadata, request)[1] == "Missing ModelSpec"
    request.model_spec.name = "m"
    assert refusal(served.GetModelMetadata, request) == (
        "INVALID_ARGUMENT",
        "GetModelMetadataRequest must specify at least one metadata_field",
    )
    request.metadata_field.append("signature_def")
    response = served.GetModelMetadata(request)
    spec = response.model_spec
    assert (spec.name, spec.version.value, spec.signature_name) == ("m", 4, "")
    signatures = get_model_metadata_pb2.SignatureDefMap()
    assert response.metadata["signature_def"].Unpack(signatures)
    assert set(signatures.signature_def) == {"serving_default", "strict", "classes", "value"}
    default = signatures.signature_def["serving_default"].defaults["k"]
    assert from_proto("k", default) == 2
    request.metadata_field.append("graph")
    assert refusal(served.GetModelMetadata, request)[1] == "Metadata field graph is not supported"

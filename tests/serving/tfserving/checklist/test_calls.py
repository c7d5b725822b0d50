"""gRPC, by the stubs of tensorflow-serving-api (3)."""

from __future__ import annotations

import grpc
import numpy as np
import pytest

from tests.serving.tfserving.checklist.harness import (
    HALF,
    KERAS,
    MODULE,
    post,
    predict_request,
    refusal,
)

pytestmark = pytest.mark.soak


def test_predict_over_grpc(stubs):
    response = stubs[0].Predict(predict_request(HALF, x=np.float32([[1], [2]])))
    assert (response.model_spec.name, response.model_spec.version.value) == (HALF, 123)
    assert response.model_spec.signature_name == "serving_default"
    assert list(response.outputs["y"].float_val) == [2.5, 3.0]
    assert not response.outputs["y"].tensor_content
    labelled = predict_request(HALF, x=np.float32([[1]]))
    labelled.model_spec.version_label = "stable"
    assert stubs[0].Predict(labelled).model_spec.version_label == ""
    # Over a socket as well, and on signatures that are declared for another method.
    import tensorflow as tf

    example = tf.train.Example()
    example.features.feature["x"].float_list.value.append(2)
    serialized = predict_request(HALF, "regress_x_to_y", inputs=[example.SerializeToString()])
    assert list(stubs[0].Predict(serialized).outputs["outputs"].float_val) == [3.0]


@pytest.mark.parametrize(
    "dtype",
    ["float32", "float64", "int8", "uint8", "int16", "int32", "int64", "uint32", "uint64", "bool",
     "string", "float16", "bfloat16", "uint16", "complex64"],
)  # fmt: skip
def test_each_type_over_grpc(stubs, dtype):
    import tensorflow as tf

    kind = tf.as_dtype(dtype)
    value = np.array([[b"\xff", b"b"]], object) if dtype == "string" else np.ones((1, 2))
    if dtype != "string":
        value = value.astype(kind.as_numpy_dtype)
    answer = stubs[0].Predict(predict_request(MODULE, f"echo_{dtype}", x=value)).outputs["y"]
    assert answer.dtype == kind.as_datatype_enum
    np.testing.assert_array_equal(tf.make_ndarray(answer), value)
    wrong = predict_request(MODULE, f"echo_{dtype}", x=np.array([1 + 1j], np.complex128))
    code, text = refusal(stubs[0].Predict, wrong)
    assert code == "INVALID_ARGUMENT"
    assert text


def _without_spec(request):
    request.ClearField("model_spec")


def _without_name(request):
    request.model_spec.name = ""


def _other(**spec):
    def change(request):
        for name, value in spec.items():
            if name == "version":
                request.model_spec.version.value = value
            else:
                setattr(request.model_spec, name, value)

    return change


def _two_inputs(request):
    request.inputs["z"].CopyFrom(request.inputs["x"])


def _other_input(request):
    _two_inputs(request)
    del request.inputs["x"]


def _filtered(*names):
    return lambda request: request.output_filter.extend(names)


def _torn(request):
    request.inputs["x"].tensor_content = b"abc"


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        (_without_spec, "INVALID_ARGUMENT", "Missing ModelSpec"),
        (_without_name, "INVALID_ARGUMENT", "ModelSpec has no name specified."),
        (_other(name="n"), "NOT_FOUND", "Servable not found for request: Latest(n)"),
        (_other(version=7), "NOT_FOUND", f"Servable not found for request: Specific({HALF}, 7)"),
        (
            _other(version_label="l"),
            "INVALID_ARGUMENT",
            "Unrecognized servable version label: l",
        ),
        (
            _other(signature_name="s"),
            "FAILED_PRECONDITION",
            'Serving signature key "s" not found.',
        ),
        (
            _two_inputs,
            "INVALID_ARGUMENT",
            (
                "input size does not match signature: 2!=1 len({x,z}) != len({x}). "
                "Sent extra: {z}. Missing but required: {}."
            ),
        ),
        (
            _other_input,
            "INVALID_ARGUMENT",
            (
                "Signature input alias: x(feed name: x:0) not found in request and no default "
                "value provided. Inputs expected to be in the request {z}, or default input alias "
                "set: "
            ),
        ),
        (_torn, "INVALID_ARGUMENT", "tensor parsing error: x"),
        (
            _filtered("z"),
            "INVALID_ARGUMENT",
            "output tensor alias not found in signature: z Outputs expected to be in the set {y}.",
        ),
        (_filtered("y", "y"), "INVALID_ARGUMENT", "duplicate output tensor alias: y"),
    ],
)
def test_refused_calls(stubs, change, code, message):
    request = predict_request(HALF, x=np.float32([[1]]))
    change(request)
    assert refusal(stubs[0].Predict, request) == (code, message)


def _examples(request, *values):
    for value in values:
        example = request.input.example_list.examples.add()
        example.features.feature["x"].float_list.value.append(value)
    return request


def test_classify_regress_and_both_over_grpc(stubs):
    from tensorflow_serving.apis import classification_pb2, inference_pb2, regression_pb2

    regress = _examples(regression_pb2.RegressionRequest(), 1, 2)
    regress.model_spec.name = HALF
    assert refusal(stubs[0].Regress, regress)[0] == "INVALID_ARGUMENT"
    regress.model_spec.signature_name = "regress_x_to_y"
    answer = stubs[0].Regress(regress)
    assert [each.value for each in answer.result.regressions] == [2.5, 3.0]
    assert answer.model_spec.version.value == 123
    regress.model_spec.signature_name = "s"
    assert refusal(stubs[0].Regress, regress) == (
        "INVALID_ARGUMENT",
        "No signature was found with the name: s",
    )
    classify = _examples(classification_pb2.ClassificationRequest(), 1)
    classify.model_spec.name, classify.model_spec.signature_name = HALF, "classify_x_to_y"
    (found,) = stubs[0].Classify(classify).result.classifications
    assert [(each.label, each.score) for each in found.classes] == [("", 2.5)]
    classify.input.Clear()
    assert refusal(stubs[0].Classify, classify) == ("INVALID_ARGUMENT", "Input is empty.")
    both = _examples(inference_pb2.MultiInferenceRequest(), 1)
    for signature, method in (("regress_x_to_y", "regress"), ("classify_x_to_y", "classify")):
        task = both.tasks.add(method_name=f"tensorflow/serving/{method}")
        task.model_spec.name, task.model_spec.signature_name = HALF, signature
    results = stubs[0].MultiInference(both).results
    assert results[0].regression_result.regressions[0].value == 2.5
    assert results[1].classification_result.classifications[0].classes[0].score == 2.5
    both.tasks[1].method_name = "other"
    assert refusal(stubs[0].MultiInference, both) == (
        "UNIMPLEMENTED",
        "Unsupported signature method_name: other",
    )
    both.tasks[1].model_spec.signature_name = "regress_x_to_y"
    assert refusal(stubs[0].MultiInference, both) == (
        "INVALID_ARGUMENT",
        "Duplicate evaluation of signature: regress_x_to_y",
    )
    both.tasks[1].model_spec.name = KERAS
    assert refusal(stubs[0].MultiInference, both) == (
        "INVALID_ARGUMENT",
        "All ModelSpecs in a MultiInferenceRequest must access the same model name.",
    )
    both.ClearField("tasks")
    assert refusal(stubs[0].MultiInference, both) == (
        "INVALID_ARGUMENT",
        "ModelSpec has no name specified.",
    )


def test_metadata_status_and_health_over_grpc(server, stubs):
    from grpc_health.v1 import health_pb2, health_pb2_grpc
    from tensorflow_serving.apis import get_model_metadata_pb2, get_model_status_pb2

    metadata = get_model_metadata_pb2.GetModelMetadataRequest()
    metadata.model_spec.name = HALF
    assert refusal(stubs[0].GetModelMetadata, metadata) == (
        "INVALID_ARGUMENT",
        "GetModelMetadataRequest must specify at least one metadata_field",
    )
    metadata.metadata_field.append("signature_def")
    found = get_model_metadata_pb2.SignatureDefMap()
    assert stubs[0].GetModelMetadata(metadata).metadata["signature_def"].Unpack(found)
    assert found.signature_def["serving_default"].inputs["x"].name == "x:0"
    metadata.metadata_field.append("other")
    assert refusal(stubs[0].GetModelMetadata, metadata) == (
        "INVALID_ARGUMENT",
        "Metadata field other is not supported",
    )
    status = get_model_status_pb2.GetModelStatusRequest()
    assert refusal(stubs[1].GetModelStatus, status) == ("INVALID_ARGUMENT", "Missing ModelSpec")
    status.model_spec.SetInParent()
    assert refusal(stubs[1].GetModelStatus, status) == (
        "NOT_FOUND",
        "Could not find any versions of model ",
    )
    status.model_spec.name = HALF
    (only,) = stubs[1].GetModelStatus(status).model_version_status
    assert (only.version, only.state, only.status.error_code) == (123, 30, 0)
    # Not registered there either.
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        for path in (
            "/tensorflow.serving.SessionService/SessionRun",
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        ):
            assert refusal(channel.unary_unary(path), b"")[0] == "UNIMPLEMENTED"
        health = health_pb2_grpc.HealthStub(channel)
        for name in ("", "ModelService", "PredictionService"):
            assert health.Check(health_pb2.HealthCheckRequest(service=name)).status == 1


def test_both_clients_give_the_same_numbers(server, stubs):
    image = np.random.default_rng(3).random((5, 4, 4, 1), np.float32)
    answer = stubs[0].Predict(predict_request(KERAS, image=image))
    (output,) = answer.outputs.values()
    _, content = post(server, f"{KERAS}:predict", {"instances": image.tolist()})
    np.testing.assert_allclose(
        np.reshape(output.float_val, (5, 3)), np.array(content["predictions"], np.float32)
    )


@pytest.mark.parametrize(
    "shape", [(), (0,), (1,), (2,), (0, 2), (3, 2), (2, 3), (1, 1, 2), (2, 1, 1, 2)]
)
def test_each_shape(server, stubs, shape):
    x = np.ones(shape, np.float32)
    body = {"signature_name": "single", "inputs": x.tolist()}
    status, answer = post(server, f"{MODULE}:predict", body)
    request = predict_request(MODULE, "single", x=x)
    if len(shape) != 2 or shape[1] != 2:
        code, text = refusal(stubs[0].Predict, request)
        assert (status, code) == (400, "INVALID_ARGUMENT")
        assert text
        assert answer["error"]
        return
    found = stubs[0].Predict(request)
    # JSON cannot tell the size of what is in an empty list.
    assert status == 400 if 0 in shape else answer["outputs"]
    assert list(found.outputs["y"].float_val) == [3.0] * (x.size // 2)

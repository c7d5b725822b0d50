"""The document is valid OpenAPI, and says of each model what the server does."""

from __future__ import annotations

import json

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openapi_spec_validator import OpenAPIV31SpecValidator

from timonel.serving.console.openapi.document import Facts, Model, Version, document
from timonel.serving.console.openapi.schemas import (
    TooLargeError,
    examples,
    request_schema,
    title,
    verbs,
)
from timonel.serving.protocols.tfs_rest.request_body import parse_request
from timonel.serving.protocols.tfs_rest.response_body import encode
from timonel.serving.signature import NUMPY_TYPES, STRING, Signature, TensorSpec

FACTS = Facts("1.0", metrics_path="/metrics")


def spec(dtype="DT_FLOAT", shape=(-1,)):
    return TensorSpec("t:0", dtype, shape)


def signature(inputs, outputs=None, name="serving_default", method=""):
    return Signature(name, inputs, outputs or {"y": spec()}, method)


DENSE = signature({"x": spec(shape=(-1, 2, 3))}, {"scores": spec(shape=(-1, 4))})
TABLE = signature(
    {"age": spec("DT_INT64"), "name": spec(STRING)}, {"y": spec(), "text": spec(STRING)}
)
IMAGES = signature(
    {"image_bytes": spec(STRING)}, {"scores": spec(shape=(-1, 2)), "label": spec(STRING)}
)
SCALAR = signature({"n": spec("DT_INT32", ())}, {"squared": spec("DT_INT32", ())}, "square")
CLASSES = signature(
    {"inputs": spec(STRING)}, {"scores": spec(shape=(-1, 3)), "classes": spec(STRING)}, "classes"
)
VALUE = signature({"inputs": spec(STRING)}, {"outputs": spec()}, "value")
HALF = signature({"x": spec("DT_HALF")}, {"y": spec()}, "half")


def of(*found):
    return {each.name: each for each in found}


def made(*models, facts=FACTS):
    return document(models, facts)


def validated(content):
    OpenAPIV31SpecValidator(content).validate()
    return content


def test_a_document_of_many_models_is_valid():
    content = validated(
        made(
            Model(
                "dense",
                [Version(1, of(DENSE)), Version(2, of(DENSE, SCALAR))],
                {"stable": 1, "gone": 9},
            ),
            Model("a/b:ü c", [Version(7, of(TABLE, CLASSES, VALUE, HALF))]),
            Model("images", [Version(1, of(IMAGES))]),
            Model("empty"),
            facts=Facts("1.0", is_closed=True, metrics_path="/monitoring/prometheus/metrics"),
        )
    )
    paths = content["paths"]
    assert set(paths["/v1/models/dense:predict"]) == {"post"}
    assert {path for path in paths if path.startswith("/v1/models/dense")} == {
        "/v1/models/dense",
        "/v1/models/dense:predict",
        "/v1/models/dense/metadata",
        *(
            f"/v1/models/dense/versions/{n}{end}"
            for n in (1, 2)
            for end in ("", ":predict", "/metadata")
        ),
        "/v1/models/dense/labels/stable:predict",
        "/v1/models/dense/labels/stable/metadata",
    }
    assert "/v1/models/a%2Fb%3A%C3%BC%20c:classify" in paths
    assert "/v1/models/a%2Fb%3A%C3%BC%20c:regress" in paths
    assert [path for path in paths if "/empty" in path] == ["/v1/models/empty"]
    assert content["security"] == [{"bearer": []}, {"apiKey": []}]
    assert json.loads(json.dumps(content)) == content


def test_a_server_without_a_model_or_a_list():
    content = validated(made(facts=Facts("1.0", lists=False)))
    assert set(content["paths"]) == {"/livez", "/readyz"}
    assert "security" not in content


names = st.text(st.sampled_from("ab/_: %ü{}"), min_size=1, max_size=4)


@pytest.mark.slow
@settings(max_examples=6, deadline=None)
@given(st.sets(names, max_size=4))
def test_any_names_give_a_valid_document(found):
    content = validated(made(*(Model(name, [Version(1, of(DENSE))]) for name in sorted(found))))
    assert sum(path.endswith(":predict") for path in content["paths"]) == 2 * len(found)


@pytest.mark.parametrize("each", [DENSE, TABLE, IMAGES, SCALAR], ids=lambda each: each.name)
def test_examples_fit_their_schema_and_are_what_the_server_reads(each):
    schema = request_schema("predict", each)
    for form, value in examples("predict", each, 100).items():
        jsonschema.validate(value, schema)
        arrays = parse_request(json.dumps(value).encode()).arrays(each.inputs)
        for name, array in arrays.items():
            declared = each.inputs[name].shape
            assert len(array.shape) == len(declared), form
            assert all(want in (-1, got) for want, got in zip(declared, array.shape, strict=True))
            assert array.dtype == NUMPY_TYPES[each.inputs[name].dtype]


@pytest.mark.parametrize("each", [CLASSES, VALUE], ids=lambda each: each.name)
def test_examples_of_examples(each):
    verb = "classify" if each is CLASSES else "regress"
    assert verb in verbs(each)
    jsonschema.validate(examples(verb, each, 9)["examples"], request_schema(verb, each))


def test_what_json_cannot_carry_is_not_offered():
    assert verbs(HALF) == ()
    content = validated(made(Model("m", [Version(1, of(HALF))])))
    assert not [path for path in content["paths"] if path.endswith(":predict")]


@pytest.mark.parametrize(
    ("each", "wrong"),
    [
        (DENSE, {"instances": []}),
        (DENSE, {"instances": [[[1, 2], [3, 4]]]}),
        (DENSE, {"instances": [[[1, 2, 3], [4, 5, "6"]]]}),
        (DENSE, {"instances": [], "inputs": []}),
        (DENSE, {}),
        (TABLE, {"instances": [{"age": 1}]}),
        (TABLE, {"instances": [{"age": 1.5, "name": "a"}]}),
        (TABLE, {"instances": [{"age": 1, "name": "a", "more": 1}]}),
        (SCALAR, {"inputs": 1}),
        (SCALAR, {"inputs": 2**31, "signature_name": "square"}),
    ],
)
def test_what_does_not_fit_is_not_valid(each, wrong):
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, request_schema("predict", each))


@pytest.mark.parametrize("each", [DENSE, TABLE, IMAGES, SCALAR], ids=lambda each: each.name)
def test_answers_fit_their_schema(each):
    import numpy as np

    content = made(Model("m", [Version(1, of(each))]))
    schema = content["components"]["schemas"]["m.v1.predict.answer"]
    outputs = {}
    for name, out in each.outputs.items():
        shape = tuple(2 if size < 0 else size for size in out.shape)
        outputs[name] = np.full(shape, b"a" if out.dtype == STRING else 1, NUMPY_TYPES[out.dtype])
    for by_row in (True, False):
        if by_row and each is SCALAR:
            continue
        jsonschema.validate(json.loads(encode(outputs, by_row=by_row)), schema)


def test_a_large_tensor_has_no_example():
    large = signature({"x": spec(shape=(-1, 224, 224, 3))})
    content = validated(made(Model("a b", [Version(3, of(large))])))
    operation = content["paths"]["/v1/models/a%20b:predict"]["post"]
    assert "examples" not in operation["requestBody"]["content"]["application/json"]
    assert len(json.dumps(content)) < 20_000
    with pytest.raises(TooLargeError):
        examples("predict", large, 100)
    placeholder = examples("predict", large, 100, lambda _, sizes: {"$shape": list(sizes)})
    assert placeholder["rows"] == {"instances": [{"$shape": [224, 224, 3]}]}


def test_shapes_in_words():
    assert title(spec(shape=(-1, 28))) == "float [?, 28]"
    assert title(spec("DT_INT64", None)) == "int64 of any shape"
    free = signature({"x": spec(shape=None)})
    jsonschema.validate(examples("predict", free, 9)["rows"], request_schema("predict", free))


def test_the_open_inference_protocol_is_described():
    content = validated(made(Model("m", [Version(1, of(TABLE, SCALAR))])))
    found = {path for path in content["paths"] if path.startswith("/v2/")}
    assert found == {
        "/v2/models/m",
        "/v2/models/m/infer",
        "/v2/models/m/versions/1",
        "/v2/models/m/versions/1/infer",
    }
    body = content["paths"]["/v2/models/m/infer"]["post"]["requestBody"]["content"]
    described = body["application/json"]
    assert described["example"] == {
        "inputs": [
            {"name": "age", "datatype": "INT64", "shape": [1], "data": [1]},
            {"name": "name", "datatype": "BYTES", "shape": [1], "data": ["text"]},
        ]
    }
    jsonschema.validate(described["example"], described["schema"])
    wrong = {"inputs": [{"name": "age", "datatype": "FP32", "shape": [1], "data": [1]}] * 2}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, described["schema"])

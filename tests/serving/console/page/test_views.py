"""Examples are what the server reads, in the declared types and shapes."""

from __future__ import annotations

import json

import pytest

from timonel.serving.console.page.views import examples, verbs
from timonel.serving.protocols.tfs_rest.examples import examples_from_json
from timonel.serving.protocols.tfs_rest.predict import parse_request
from timonel.serving.signature import NUMPY_TYPES, STRING, Signature, TensorSpec


def spec(dtype="DT_FLOAT", shape=(-1,)):
    return TensorSpec("t:0", dtype, shape)


def signature(inputs, outputs=None, name="serving_default"):
    return Signature(name, inputs, outputs or {"y": spec()})


DENSE = signature({"x": spec(shape=(-1, 2, 3))})
TABLE = signature({"age": spec("DT_INT64"), "name": spec(STRING), "ok": spec("DT_BOOL")})
IMAGES = signature({"image_bytes": spec(STRING)})
SCALAR = signature({"n": spec("DT_INT32", ())}, {"squared": spec("DT_INT32", ())}, "square")
CLASSES = signature({"inputs": spec(STRING)}, {"scores": spec(shape=(-1, 3))}, "classes")
VALUE = signature({"inputs": spec(STRING)}, {"outputs": spec()}, "value")


@pytest.mark.parametrize("each", [DENSE, TABLE, IMAGES, SCALAR])
def test_examples_are_read(each):
    for form, value in examples("predict", each).items():
        request = parse_request(json.dumps(value).encode())
        assert request.signature_name in {"", each.name}
        for name, array in request.arrays(each.inputs).items():
            declared = each.inputs[name].shape
            assert len(array.shape) == len(declared), form
            assert all(want in (-1, got) for want, got in zip(declared, array.shape, strict=True))
            assert array.dtype == NUMPY_TYPES[each.inputs[name].dtype]
    assert ("rows" in examples("predict", each)) == (each is not SCALAR)


def test_stored_values_are_the_example():
    row = {"name": "2026-01-31", "age": None, "other": 1}
    found = examples("predict", TABLE, row)
    assert found["rows"]["instances"] == [{"age": None, "name": "2026-01-31", "ok": True}]
    assert found["columns"]["inputs"] == {"age": [None], "name": ["2026-01-31"], "ok": [True]}
    assert examples("predict", DENSE, {"x": [[0.5]]})["rows"] == {"instances": [[[0.5]]]}


@pytest.mark.parametrize(("each", "verb"), [(CLASSES, "classify"), (VALUE, "regress")])
def test_examples_of_examples(each, verb):
    assert verbs(each) == ["predict", verb]
    content = examples(verb, each)["examples"]
    assert content["signature_name"] == each.name
    assert len(examples_from_json(content)[0]) == 1


def test_what_json_cannot_carry_is_not_offered():
    assert verbs(signature({"x": spec("DT_HALF")})) == []
    assert verbs(signature({})) == []


def test_a_large_tensor_is_a_placeholder():
    large = signature({"x": spec(shape=(-1, 224, 224, 3))})
    fill = {"$fill": 0.5, "$shape": [224, 224, 3]}
    assert examples("predict", large)["rows"] == {"instances": [fill]}


def test_shapes_in_words():
    assert spec(shape=(-1, 28)).title == "float [?, 28]"
    assert spec("DT_INT64", None).title == "int64 of any shape"

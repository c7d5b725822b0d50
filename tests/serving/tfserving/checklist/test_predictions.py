"""Predict over REST: what JSON becomes, and what it is refused for (2.3, 2.4)."""

from __future__ import annotations

import base64
import json
import math

import numpy as np
import pytest

from tests.serving.tfserving.checklist.harness import (
    HALF,
    KERAS,
    MODULE,
    error_of,
    post,
)

pytestmark = pytest.mark.soak


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        (f"{HALF}:predict", b"", 400, "JSON Parse error: The document is empty"),
        ("nope:predict", b"", 400, "JSON Parse error: The document is empty"),
        (f"{HALF}:predict", b"[1]", 400, "JSON Value: [\n    1\n] Is not object"),
        (
            f"{HALF}:predict",
            b'{"instances": [1}',
            400,
            None,  # TensorFlow Serving words it as its parser does
        ),
        (
            f"{HALF}:predict",
            b'{"signature_name": 5}',
            400,
            ('JSON Value: {\n    "signature_name": 5\n} not formatted correctly. '
            "'signature_name' key must be a string value."),
        ),
        (f"{HALF}:predict", b"{}", 400, "Missing 'inputs' or 'instances' key"),
        (
            f"{HALF}:predict",
            b'{"inputs":[1],"instances":[1]}',
            400,
            (
                'JSON Value: {\n    "inputs": [\n        1\n    ],\n    "instances": [\n'
                "        1\n    ]\n} Not formatted correctly expecting only one of 'inputs' or "
                "'instances' keys to exist "
            ),
        ),
        (
            f"{HALF}:predict",
            b'{"signature_name": "s"}',
            400,
            'Serving signature name: "s" not found in signature def',
        ),
        (f"{HALF}/labels/x:predict", b"{}", 400, "Unrecognized servable version label: x"),
        ("nope:predict", b"{}", 404, "Servable not found for request: Latest(nope)"),
        (
            f"{HALF}/versions/7:predict",
            b"{}",
            404,
            f"Servable not found for request: Specific({HALF}, 7)",
        ),
        (
            f"{HALF}:predict",
            b'{"instances":5}',
            400,
            "JSON Value: {\n    \"instances\": 5\n} Expecting 'instances' to be an list/array",
        ),
        (
            f"{HALF}:predict",
            b'{"instances":[]}',
            400,
            "JSON Value: {\n    \"instances\": []\n} No values in 'instances' array",
        ),
        (
            f"{HALF}:predict",
            b'{"instances":[{"z":1}]}',
            400,
            ("Failed to process element: 0 key: z of 'instances' list. Error: INVALID_ARGUMENT: "
            "JSON object: does not have named input: z"),
        ),
        (
            f"{MODULE}:predict",
            b'{"instances":[{"text":"a"}]}',
            400,
            ("Failed to process element: 0 of 'instances' list. JSON object: "
            '{\n    "text": "a"\n} keys must be equal to: text,times'),
        ),
        (
            f"{MODULE}:predict",
            b'{"instances":[1]}',
            400,
            ("instances is a plain list, but expecting list of objects as multiple input tensors "
            "required as per tensorinfo_map"),
        ),
        (
            f"{MODULE}:predict",
            b'{"inputs":{"text":["a"]}}',
            400,
            "Missing named input: times in 'inputs' object.",
        ),
        (
            f"{MODULE}:predict",
            b'{"inputs":[1]}',
            400,
            ("inputs is a plain value/list, but expecting an object as multiple input tensors "
            "required as per tensorinfo_map"),
        ),
        (
            f"{HALF}:predict",
            b'{"instances":[1, [2]]}',
            400,
            ("Failed to process element: 1 of 'instances' list. Error: INVALID_ARGUMENT: "
            "Expecting shape [] but got: [1]"),
        ),
        (
            f"{HALF}:predict",
            b'{"instances":["a"]}',
            400,
            ('Failed to process element: 0 of \'instances\' list. Error: INVALID_ARGUMENT: JSON '
            'Value: "a" Type: String is not of expected type: float'),
        ),
        (
            f"{MODULE}:predict",
            b'{"inputs":{"text":["a"],"times":[1.0]}}',
            400,
            "JSON Value: 1.0 Type: Number is not of expected type: int32",
        ),
        (
            f"{MODULE}:predict",
            b'{"inputs":{"text":[{"b64":"*"}],"times":[1]}}',
            400,
            "Unable to base64 decode",
        ),
        (
            f"{MODULE}:predict",
            b'{"signature_name":"echo_float16","instances":[1]}',
            400,
            (
                "Failed to process element: 0 of 'instances' list. Error: UNIMPLEMENTED: "
                "Conversion of JSON Value: 1 to type: half"
            ),
        ),
        (
            f"{MODULE}:predict",
            b'{"signature_name":"scalar","instances":[1]}',
            400,
            None,
        ),
    ],
)  # fmt: skip
def test_refused_predictions(server, path, body, status, message):
    found, said = error_of(server, path, body)
    assert found == status, said
    assert message is None or said == message


def test_what_json_may_hold_besides(server):
    body = b'{"instances": [NaN, Infinity, -Infinity, 1e39, 0.5], "unknown": {}} trailing'
    status, _, answer = server.ask("POST", f"/v1/models/{HALF}:predict", body)
    assert status == 200
    first, *others = json.loads(answer)["predictions"]
    assert math.isnan(first)
    assert others == [math.inf, -math.inf, math.inf, 2.25]


def test_rows_columns_and_shapes(server):
    assert post(server, f"{HALF}:predict", {"instances": [[1.0], [2.0]]}) == (
        200,
        {"predictions": [[2.5], [3.0]]},
    )
    # Declared [-1, 1]; only kernels look at shapes.
    assert post(server, f"{HALF}:predict", {"instances": [1.0]}) == (200, {"predictions": [2.5]})
    assert post(server, f"{HALF}:predict", {"inputs": 3.0}) == (200, {"outputs": 3.5})
    assert post(server, f"{HALF}:predict", {"inputs": {"x": [3.0], "extra": 1}}) == (
        200,
        {"outputs": [3.5]},
    )
    image = np.zeros((2, 4, 4, 1)).tolist()
    for body, key in (({"instances": image}, "predictions"), ({"inputs": image}, "outputs")):
        status, answer = post(server, f"{KERAS}:predict", body)
        assert status == 200
        np.testing.assert_allclose(answer[key], np.full((2, 3), 1 / 3), rtol=1e-5)
    status, said = error_of(server, f"{KERAS}:predict", {"instances": [[1.0, 2.0]]})
    assert status == 400
    assert said


def test_texts_bytes_and_several_outputs(server):
    encoded = base64.b64encode(b"\xff\x00z").decode()
    rows = [{"text": "añ", "times": 2}, {"text": {"b64": encoded}, "times": 1}]
    status, _, answer = server.ask(
        "POST", f"/v1/models/{MODULE}:predict", json.dumps({"instances": rows[:1]})
    )
    assert (status, json.loads(answer)) == (
        200,
        {
            "predictions": [
                {
                    "upper": "Añ".encode().decode(),
                    "raw_bytes": {"b64": base64.b64encode("añ".encode()).decode()},
                    "length": 6,
                }
            ]
        },
    )
    columns = {"inputs": {"text": ["a", {"b64": encoded}], "times": [1, 1]}}
    status, _, answer = server.ask("POST", f"/v1/models/{MODULE}:predict", json.dumps(columns))
    assert status == 200
    # TensorFlow Serving writes bytes that are not UTF-8 as they are, which is invalid JSON.
    upper = base64.b64encode(b"\xff\x00Z").decode()
    assert json.loads(answer)["outputs"]["upper"] == ["A", {"b64": upper}]
    odd = {"signature_name": "odd", "instances": [1.0]}
    status, said = error_of(server, f"{MODULE}:predict", odd)
    assert status == 400
    assert said in {
        "Tensor name: x has inconsistent batch size: 1 expecting: 2",
        "Tensor name: twice has inconsistent batch size: 2 expecting: 1",
    }
    assert post(server, f"{MODULE}:predict", {"signature_name": "scalar", "inputs": 4}) == (
        200,
        {"outputs": {"n": 4, "two": [4, 4]}},
    )


@pytest.mark.parametrize(
    ("dtype", "value", "wrong", "expected"),
    [
        ("float32", 1.5, "a", "float"),
        ("float64", 1.5, True, "double"),
        ("int8", 5, 1.5, "int8"),
        ("uint8", 5, "5", "uint8"),
        ("int16", 5, None, "int16"),
        ("int32", 5, 2**31, "int32"),
        ("int64", 2**62, 2**63, "int64"),
        ("uint32", 2**32 - 1, -1, "uint32"),
        ("uint64", 2**64 - 1, -1, "uint64"),
        ("bool", True, 1, "bool"),
        ("string", "a", 1, "string"),
    ],
)
def test_each_type_and_what_it_is_not(server, dtype, value, wrong, expected):
    signature = {"signature_name": f"echo_{dtype}"}
    path = f"{MODULE}:predict"
    for shaped in (value, [value], [[value, value]]):
        assert post(server, path, signature | {"inputs": shaped}) == (200, {"outputs": shaped})
    status, said = error_of(server, path, signature | {"inputs": [wrong]})
    assert status == 400
    assert said.startswith(f"JSON Value: {json.dumps(wrong)} Type: ")
    assert said.endswith(f" is not of expected type: {expected}")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "uint16", "complex64"])
def test_types_that_rest_does_not_have(server, dtype):
    body = {"signature_name": f"echo_{dtype}", "inputs": [1]}
    status, said = error_of(server, f"{MODULE}:predict", body)
    assert status == 501
    assert said.startswith("Conversion of JSON Value: 1 to type: ")


@pytest.mark.parametrize("value", [0.1, 1 / 3, 9e6, 100000.0, 1e-7, 16777216.0, -0.0])
def test_floats_keep_their_value(server, value):
    body = {"signature_name": "echo_float32", "inputs": value}
    status, answer = post(server, f"{MODULE}:predict", body)
    assert (status, np.float32(answer["outputs"])) == (200, np.float32(value))
    assert math.copysign(1, answer["outputs"]) == math.copysign(1, value)

"""Classify and Regress over REST (2.5)."""

from __future__ import annotations

import pytest

from tests.serving.tfserving.checklist.harness import (
    HALF,
    MODULE,
    error_of,
    post,
)

pytestmark = pytest.mark.soak


def test_examples_over_rest(server):
    path = f"{HALF}:regress"
    named = {"signature_name": "regress_x_to_y"}
    rows = [{"x": 1.0}, {"x": [2.0]}]
    assert post(server, path, named | {"examples": rows}) == (200, {"results": [2.5, 3.0]})
    shared = {"signature_name": "regress_x_to_y2", "context": {"x": 1.0}, "examples": [{}, {}]}
    assert post(server, path, shared) == (200, {"results": [3.5, 3.5]})
    classes = {"signature_name": "classify_x_to_y", "examples": rows}
    assert post(server, f"{HALF}:classify", classes) == (
        200,
        {"results": [[["", 2.5]], [["", 3.0]]]},
    )
    body = {"signature_name": "classes", "examples": [{"x": [0.25, 0.75]}]}
    assert post(server, f"{MODULE}:classify", body) == (
        200,
        {"results": [[["a", 0.25], ["b", 0.75]]]},
    )
    # A whole number is an int64, which is not what the model parses.
    status, said = error_of(server, path, named | {"examples": [{"x": 2}]})
    assert status == 400
    assert "Data types don't match" in said


@pytest.mark.parametrize(
    ("method", "body", "message"),
    [
        (
            "classify",
            {},
            "JSON Value: {} When method is classify, key 'examples' is expected and was not found",
        ),
        (
            "regress",
            {},
            "JSON Value: {} When method is classify, key 'examples' is expected and was not found",
        ),
        (
            "regress",
            {"examples": 1},
            "JSON Value: {\n    \"examples\": 1\n} Expecting 'examples' value to be an list/array",
        ),
        (
            "regress",
            {"examples": []},
            "JSON Value: {\n    \"examples\": []\n} 'examples' value is an empty array",
        ),
        ("regress", {"examples": [1]}, "Example must be JSON object but got JSON Number"),
        (
            "regress",
            {"examples": [{"x": [1.0, 1]}]},
            "Unexpected element type in feature: x expecting type: float",
        ),
        (
            "regress",
            {"examples": [{"x": None}]},
            "Feature: x has element with unexpected JSON type: Null",
        ),
        (
            "regress",
            {"examples": [{"x": 2**63}]},
            "Feature: x has uint64_t element. Only int64_t is supported.",
        ),
    ],
)
def test_refused_examples(server, method, body, message):
    status, said = error_of(server, f"{HALF}:{method}", body)
    assert (status, said) == (400, message)

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timonel.data.examples import decode_example
from timonel.serving.codec.jsontext import parse
from timonel.serving.protocols.tfs_rest.examples import example_from_json, examples_from_json
from timonel.serving.status import StatusError


def test_the_type_follows_from_how_a_value_is_written():
    content = parse(
        b"""{"a": 1, "b": 1.0, "c": "x", "d": {"b64": "/wA="}, "e": [true, false, 3],
        "f": ["x", {"b64": "eQ=="}], "g": [1.5, 2e0], "h": [], "i": -7}"""
    )
    assert decode_example(example_from_json(content)) == {
        "a": [1],
        "b": [1.0],
        "c": [b"x"],
        "d": [b"\xff\0"],
        "e": [1, 0, 3],
        "f": [b"x", b"y"],
        "g": [1.5, 2.0],
        "h": [],
        "i": [-7],
    }


def test_a_number_beyond_float_is_infinite():
    features = decode_example(example_from_json({"a": [1e300, -1e300], "b": 10**30}))
    assert features["a"] == [math.inf, -math.inf]
    assert features["b"] == [np.float32(1e30)]


values = st.one_of(
    st.lists(st.integers(-(2**63), 2**63 - 1)),
    st.lists(st.floats(width=32, allow_nan=False)),
    st.lists(st.text(st.characters(exclude_categories=["Cs"]))),
)


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), values))
def test_lists_of_one_type_come_back(features):
    expected = {
        name: [value.encode() if isinstance(value, str) else value for value in values]
        for name, values in features.items()
    }
    assert decode_example(example_from_json(features)) == expected


def test_tensorflow_reads_them():
    tf = pytest.importorskip("tensorflow")
    example = tf.train.Example.FromString(example_from_json({"a": [1.5], "b": ["x"], "c": 3}))
    features = example.features.feature
    assert list(features["a"].float_list.value) == [1.5]
    assert list(features["b"].bytes_list.value) == [b"x"]
    assert list(features["c"].int64_list.value) == [3]


def test_examples_and_their_context():
    examples, context = examples_from_json({"examples": [{"a": 1}, {"a": 2}], "context": {"b": 3}})
    assert [decode_example(context + example) for example in examples] == [
        {"a": [1], "b": [3]},
        {"a": [2], "b": [3]},
    ]
    assert examples_from_json({"examples": [{}]}) == ([example_from_json({})], b"")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "When method is classify, key 'examples' is expected and was not found"),
        ({"examples": {}}, "Expecting 'examples' value to be an list/array"),
        ({"examples": []}, "'examples' value is an empty array"),
        ({"examples": [[1]]}, "Example must be JSON object but got JSON Array"),
        (
            {"examples": [{}], "context": 1},
            "Example must be JSON object but got JSON Number",
        ),
    ],
)
def test_bodies_that_are_refused(content, message):
    with pytest.raises(StatusError) as caught:
        examples_from_json(content)
    assert caught.value.message.endswith(message)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([1, 2.0], "Unexpected element type in feature: f expecting type: int64"),
        ([2.0, 1], "Unexpected element type in feature: f expecting type: float"),
        (["a", True], "Unexpected element type in feature: f expecting type: bytes"),
        (None, "Feature: f has element with unexpected JSON type: Null"),
        ([[1]], "Feature: f has element with unexpected JSON type: Array"),
        ({"a": 1}, "Feature: f has element with unexpected JSON type: Object"),
        (2**63, "Feature: f has uint64_t element. Only int64_t is supported."),
        ({"b64": "%"}, "Unable to base64 decode"),
    ],
)
def test_features_that_are_refused(value, message):
    with pytest.raises(StatusError) as caught:
        example_from_json({"f": value})
    assert caught.value.message == message


def test_half_a_surrogate_pair_is_refused_as_a_name():
    with pytest.raises(StatusError):
        example_from_json({"\ud800": 1})

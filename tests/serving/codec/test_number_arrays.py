from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.serving.codec.readers import IS_MISSING
from tests.serving.protocols.tfs_rest.test_predict_body import odd, scalars, specs
from timonel.serving.codec import number_arrays as module
from timonel.serving.codec.jsontext import MAX_TOKENS
from timonel.serving.codec.number_arrays import read_outline
from timonel.serving.protocols.tfs_rest import predict
from timonel.serving.protocols.tfs_rest.predict import parse_request
from timonel.serving.status import StatusError

NUMERIC = ["FLOAT", "DOUBLE", "INT8", "INT32", "INT64", "UINT8", "UINT32", "UINT64"]
OTHERS = ["BOOL", "STRING", "HALF"]
X = specs(x="FLOAT")


pytestmark = pytest.mark.skipif(IS_MISSING, reason="there is no compiler")


@pytest.fixture(autouse=True, scope="module")
def arrays_of_any_size():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MIN_BYTES", 2)
        yield


def outcome(body, inputs):
    """Return everything that can be told from outside."""
    try:
        request = parse_request(body)
        arrays = request.arrays(inputs)
    except StatusError as error:
        return str(error)
    tensors = {
        name: (array.dtype, array.shape, repr(array.tolist())) for name, array in arrays.items()
    }
    return request.signature_name, request.by_row, tensors


def the_slow_way(body, inputs):
    """Return the outcome of the reference implementation."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "NATIVE", None)
        patch.setattr(predict, "decode_outline", lambda *_: None)
        return outcome(body, inputs)


def regular(leaves):
    return st.lists(st.integers(0, 3), min_size=1, max_size=4).flatmap(
        lambda shape: _of_shape(leaves, shape)
    )


def _of_shape(leaves, shape):
    strategy = leaves
    for size in reversed(shape):
        strategy = st.lists(strategy, min_size=size, max_size=size)
    return strategy


numbers = scalars | st.integers(-5, 5) | st.floats(width=32) | st.sampled_from([-0.0, 2**53])
ragged = st.recursive(numbers, lambda inner: st.lists(inner, max_size=3), max_leaves=8)
value = regular(numbers) | regular(odd | st.booleans()) | ragged | odd
named = st.dictionaries(st.sampled_from(["x", "y", "b64", "é"]), value, max_size=3)
content = st.fixed_dictionaries(
    {},
    optional={
        "instances": value | st.lists(named, max_size=3),
        "inputs": value | named,
        "signature_name": st.sampled_from(["", "other", 7, [1, 2]]),
        "more": value | named,
    },
)
layout = st.sampled_from(
    [
        {"separators": (",", ":")},
        {"separators": (" , ", " : ")},
        {"indent": 1},
        {"ensure_ascii": False},
    ]
)
inputs = st.dictionaries(
    st.sampled_from(["x", "y", "b64"]), st.sampled_from(NUMERIC * 3 + OTHERS), min_size=1
).map(lambda dtypes: specs(**dtypes))


@given(content, layout, inputs)
@example({"instances": [{"b64": "eA=="}]}, {}, specs(x="FLOAT", y="FLOAT"))
def test_both_ways_agree_on_json(content, layout, inputs):
    body = json.dumps(content, **layout).encode()
    assert outcome(body, inputs) == the_slow_way(body, inputs)


@given(
    content,
    inputs,
    st.lists(
        st.tuples(st.integers(0, 10**6), st.sampled_from(list('[]{},:"\\ 0-.eE\0tN'))), max_size=3
    ),
    st.integers(0, 2),
)
def test_both_ways_agree_on_what_is_nearly_json(content, inputs, insertions, dropped):
    text = json.dumps(content)
    for position, character in insertions:
        place = position % (len(text) + 1)
        text = text[:place] + character + text[place + dropped :]
    body = text.encode()
    assert outcome(body, inputs) == the_slow_way(body, inputs)


@given(regular(st.floats(allow_nan=False, allow_infinity=False)), layout)
def test_regular_numbers_take_the_fast_way(value, layout):
    array = np.array(value)
    found = read_outline(json.dumps({"inputs": value}, **layout).encode())
    if not array.size:
        assert found is None
        return
    numbers = found.fill(found.content["inputs"])
    assert numbers.values.shape == array.shape
    np.testing.assert_array_equal(numbers.values, array)


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "[[]]",
        "[[], []]",
        "[[1], []]",
        "[[], [1, 2]]",
        "[[1, 2], [3]]",
        "[[1], 2]",
        "[1, [2]]",
        "[[1, 2], [3, [4]]]",
        "[[1, 2], [3], [4, 5, 6]]",
        "[[[1]], [[2], [3]]]",
        "[[1, 2]], [3, 4]",
        "[true, 1]",
        "[null]",
        "[1e400]",
        "[18446744073709551616]",
        "[1.]",
        "[1] 2]",
        "[" * 33 + "1" + "]" * 33,
        "[" * 2000 + "1" + "]" * 2000,
    ],
)
def test_it_gives_up(text):
    assert read_outline(f'{{"inputs": {text}}}'.encode()) is None


@pytest.mark.parametrize(
    "body",
    [
        b'{"inputs": [1, 2], "name": "\\u00001"}',
        b'{"inputs": [1, 2], "name": "open\\"}',
        b'{"inputs": [1, 2]} trailing',
        b'{"inputs": [1, 2], "text": "\xff"}',
        b"{[1, 2]: 3}",
        b'["inputs": [1, 2]]',
        b'{"inputs": 1}',
    ],
)
def test_it_gives_up_on_other_requests(body):
    assert read_outline(body) is None


def test_several_arrays_and_what_is_around_them():
    body = b"""{"signature_name": "s", "inputs":
        {"x": [[1, 2.5]], "y": [3], "flag": true, "text": "[9]"}, "more": [[4]]}"""
    found = read_outline(body)
    assert found.has_booleans
    inputs = found.content["inputs"]
    assert found.fill(inputs["x"]).values.tolist() == [[1, 2.5]]
    assert not found.fill(inputs["x"]).whole
    assert found.fill(inputs["y"]).whole
    assert found.fill(inputs["text"]) == "[9]"
    assert found.fill(found.content["more"]).values.tolist() == [[4]]


@pytest.mark.parametrize(
    "text",
    [
        *(r"a\"b", r"\\", r"\\\"", r'", \"[9]', r"caf\u00e9", r"\"", r"\\\\\\"),
        pytest.param(r"\\" * 10_000, id="backslashes"),
        pytest.param(r"\"" * 10_000, id="quotation marks"),
    ],
)
def test_strings_may_have_escapes(text):
    name = json.dumps(text)
    body = f'{{{name}: {name}, "inputs": [1, 2], "last": {name}}}'.encode()
    found = read_outline(body)
    assert found.fill(found.content["inputs"]).values.tolist() == [1, 2]
    assert found.content[text] == found.content["last"] == text


@pytest.mark.parametrize("unit", ["{}", '{"a":1}', "[{}]", '"a"'])
def test_values_beside_arrays_of_numbers_are_bounded(unit):
    body = f'{{"x": [1, 2], "instances": [{",".join([unit] * MAX_TOKENS)}]}}'.encode()
    with pytest.raises(StatusError, match="The JSON has more than"):
        read_outline(body)


def test_bytes_that_are_numbers_are_no_base64():
    body = b'{"inputs": {"b64": [1, 2, 3]}}'
    assert outcome(body, specs(b64="STRING")) == the_slow_way(body, specs(b64="STRING"))


@pytest.mark.parametrize("values", [[0, [0, 0, 0]], [[0, 0, 0], 0], [[1, 2], [0, 0, 0]]])
def test_rows_with_and_without_arrays_are_one_error(values):
    body = json.dumps({"instances": [{"x": each} for each in values]}).encode()
    assert outcome(body, specs(x="FLOAT")) == the_slow_way(body, specs(x="FLOAT"))


@st.composite
def fitting(draw):
    """Draw inputs and a request for them in any form, right but for perhaps one value."""
    names = draw(st.lists(st.sampled_from(["x", "y", "z"]), min_size=1, max_size=3, unique=True))
    rows = draw(st.integers(1, 3))
    leaves = draw(st.sampled_from([scalars, st.integers(-9, 9), st.floats(-9, 9)]))
    shapes = {name: draw(st.lists(st.integers(1, 3), max_size=3)) for name in names}
    columns = {name: draw(_of_shape(leaves, [rows, *shape])) for name, shape in shapes.items()}
    if draw(st.booleans()):
        columns[names[0]][0] = draw(value)
    form = draw(st.sampled_from(["rows", "columns", "plain rows", "plain column"]))
    if form == "rows":
        instances = [{name: columns[name][row] for name in names} for row in range(rows)]
        content = {"instances": instances}
    elif form == "columns":
        content = {"inputs": columns}
    else:
        content = {"instances" if form == "plain rows" else "inputs": columns[names[0]]}
        names = names[:1]
    return content, specs(**{name: draw(st.sampled_from(NUMERIC)) for name in names})


@given(fitting(), layout)
def test_both_ways_agree_on_requests_that_fit(drawn, layout):
    content, inputs = drawn
    body = json.dumps(content, **layout).encode()
    assert outcome(body, inputs) == the_slow_way(body, inputs)


@given(st.lists(st.sampled_from([rb"\"", rb"\\", b"a", b"\n"]), max_size=20), st.booleans())
def test_the_end_of_a_string_is_found_in_steps(parts, has_end):
    content = b"".join(parts)
    body = b'"' + content + (b'" and "more"' if has_end else b"")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "STEP_BYTES", 3)
        assert module._end_of_string(body, 1) == (len(content) + 1 if has_end else -1)

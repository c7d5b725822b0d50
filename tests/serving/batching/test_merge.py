from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from timonel.serving.batching.merge import check_outputs, merge, padded_size, rows_of, split
from timonel.serving.status import Code, StatusError


def rows(count, start=0, width=2):
    return {"x": np.arange(start, start + count * width, dtype=np.float32).reshape(count, width)}


def refusal(call, *args, **kwargs):
    with pytest.raises(StatusError) as told:
        call(*args, **kwargs)
    return told.value.code, told.value.message


def test_a_single_request_is_not_copied():
    part = rows(3)
    assert merge([part]) is part


def test_several_are_copied_once_and_split_by_views():
    merged = merge([rows(2), rows(3, 10)])["x"]
    assert merged[:, 0].tolist() == [0, 2, 10, 12, 14]
    first, second = split({"y": merged}, [2, 3], whole=False)
    assert first["y"].base is merged
    assert second["y"][:, 0].tolist() == [10, 12, 14]
    assert split({"y": merged}, [5], whole=True)[0]["y"] is merged


def test_padding_repeats_the_first_row_of_the_last_request():
    merged = merge([rows(1), rows(2, 10)], 2)["x"]
    assert merged[:, 0].tolist() == [0, 10, 12, 10, 10]
    assert merge([rows(2, 4)], 1)["x"][:, 0].tolist() == [4, 6, 4]
    assert merge([rows(0)], 1)["x"].shape == (0, 2)
    assert merge([rows(2), rows(0)], 1)["x"].shape == (2, 2)


def test_sizes_are_rounded_up_to_the_allowed_ones():
    assert [padded_size(n, (2, 8)) for n in (1, 2, 3, 8, 9)] == [2, 2, 8, 8, 9]
    assert padded_size(5, ()) == 5


def test_inputs_need_rows_in_common():
    bad = Code.INVALID_ARGUMENT
    assert refusal(rows_of, {}) == (bad, "Batching Run() must have at least one input tensor")
    assert refusal(rows_of, {"x": np.array(1.0)}) == (
        bad,
        "Batching Run() input tensors must have at least one dimension",
    )
    assert refusal(rows_of, {"x": np.ones(1), "y": np.ones(2)}) == (
        bad,
        "Batching Run() input tensors must have equal 0th-dimension size",
    )
    assert rows_of({"x": np.ones((3, 2)), "y": np.ones(3)}) == 3


def test_outputs_need_the_rows_of_the_inputs():
    failed = Code.FAILED_PRECONDITION
    assert refusal(check_outputs, {"y": np.array(1.0)}, 2) == (
        failed,
        "Batched output tensor has 0 dimensions",
    )
    assert refusal(check_outputs, {"y": np.ones(3)}, 2) == (
        failed,
        (
            "Batched output tensor's 0th dimension does not equal the sum of the 0th dimension "
            "sizes of the input tensors"
        ),
    )


def test_other_shapes_are_refused_or_padded():
    parts = [{"x": np.array([[1, 2]])}, {"x": np.array([[5], [6]])}]
    code, message = refusal(merge, parts, tensors={"x": "serving_x:0"})
    assert code is Code.FAILED_PRECONDITION
    assert message.startswith("Tensors with name 'serving_x:0' from different tasks have different")
    merged = merge(parts, 1, pad_shapes=True)["x"]
    assert merged.tolist() == [[1, 2], [5, 5], [6, 5], [5, 5]]
    words = [{"x": np.array([[b"a"]], dtype=object)}, {"x": np.array([[b"b", b"c"]], dtype=object)}]
    assert merge(words, pad_shapes=True)["x"].tolist() == [[b"a", b"a"], [b"b", b"c"]]


def test_what_cannot_be_padded_is_told():
    bad = Code.INVALID_ARGUMENT
    deep = [{"x": np.ones((1,) * 6 + (size,))} for size in (1, 2)]
    assert refusal(merge, deep, pad_shapes=True) == (
        bad,
        "Only tensors with rank from 1 to 6 can be padded.",
    )
    empty = [{"x": np.ones((1, 0))}, {"x": np.ones((1, 2))}]
    assert refusal(merge, empty, pad_shapes=True) == (
        bad,
        "Got empty tensor in batch of non-empty tensors.",
    )


def test_other_types_are_refused():
    parts = [{"x": np.ones(1, np.float32)}, {"x": np.ones(1, np.int64)}]
    code, message = refusal(merge, parts)
    assert code is Code.INTERNAL
    assert message.endswith("different data types. Got float and int64.")


@settings(deadline=None)
@given(
    shapes=st.lists(st.tuples(st.integers(1, 3), st.integers(1, 4)), min_size=1, max_size=5),
    padding=st.integers(0, 3),
)
def test_every_value_is_where_it_was(shapes, padding):
    parts = [{"x": np.random.default_rng(i).random(shape)} for i, shape in enumerate(shapes)]
    merged = merge(parts, padding, pad_shapes=True)["x"]
    total = sum(each for each, _ in shapes)
    assert merged.shape == (total + padding, max(width for _, width in shapes))
    start = 0
    for part in parts:
        count, width = part["x"].shape
        assert (merged[start : start + count, :width] == part["x"]).all()
        assert (merged[start : start + count, width:] == part["x"].flat[0]).all()
        start += count

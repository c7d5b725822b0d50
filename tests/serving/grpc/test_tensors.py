from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from timonel.serving.runtimes.base import NUMPY_TYPES
from timonel.serving.status import Code, StatusError

tf = pytest.importorskip("tensorflow")

from timonel.serving.grpc.tensors import from_proto, to_proto  # noqa: E402 - after TensorFlow

NUMERIC = sorted(name for name in NUMPY_TYPES if name != "DT_STRING")
shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)


def some(dtype, shape, data):
    """An array of small numbers, which every type can hold."""
    numbers = data.draw(hnp.arrays(np.int64, shape, elements=st.integers(0, 1)))
    return numbers.astype(NUMPY_TYPES[dtype])


@given(st.sampled_from(NUMERIC), shapes, st.data())
def test_arrays_come_back_as_they_were(dtype, shape, data):
    array = some(dtype, shape, data)
    proto = to_proto(array)
    assert not proto.tensor_content
    back = from_proto("x", proto)
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    assert back.tobytes() == array.tobytes()


@given(st.sampled_from(NUMERIC), shapes, st.data())
def test_tensorflow_reads_what_we_write_and_writes_what_we_read(dtype, shape, data):
    array = some(dtype, shape, data)
    np.testing.assert_array_equal(tf.make_ndarray(to_proto(array)), array)
    np.testing.assert_array_equal(from_proto("x", tf.make_tensor_proto(array)), array)


@given(hnp.arrays(np.float32, shapes))
def test_every_float_survives(array):
    assert from_proto("x", to_proto(array)).tobytes() == array.tobytes()


def test_strings():
    array = np.array([[b"a", b"\xff\0"]], dtype=object)
    assert from_proto("x", to_proto(array)).tolist() == [[b"a", b"\xff\0"]]
    assert from_proto("x", tf.make_tensor_proto(["a", "b"])).tolist() == [b"a", b"b"]


def test_the_last_value_is_repeated():
    proto = tf.make_tensor_proto(np.ones((2, 3), np.float32))
    proto.ClearField("tensor_content")
    proto.float_val.extend([1.0, 7.0])
    assert from_proto("x", proto).tolist() == [[1, 7, 7], [7, 7, 7]]
    proto.ClearField("float_val")
    assert from_proto("x", proto).tolist() == [[0, 0, 0], [0, 0, 0]]


def _too_many(proto):
    proto.float_val.extend([1.0] * 3)


def _torn(proto):
    proto.tensor_content = b"\0" * 7


def _negative(proto):
    proto.tensor_shape.dim[0].size = -1


def _unknown_rank(proto):
    proto.tensor_shape.unknown_rank = True


def _odd_type(proto):
    proto.dtype = 20  # a resource


@pytest.mark.parametrize("spoil", [_too_many, _torn, _negative, _unknown_rank, _odd_type])
def test_a_proto_that_contradicts_itself_is_refused(spoil):
    proto = to_proto(np.ones(2, np.float32))
    spoil(proto)
    with pytest.raises(StatusError) as caught:
        from_proto("image", proto)
    assert str(caught.value) == "INVALID_ARGUMENT: tensor parsing error: image"


def test_an_array_without_a_tensor_type_is_unimplemented():
    with pytest.raises(StatusError) as caught:
        to_proto(np.array(["a"]))
    assert caught.value.code is Code.UNIMPLEMENTED

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from timonel.serving.protos.messages import tensor_pb2, types_pb2
from timonel.serving.protos.tensors import encode, from_proto, to_proto
from timonel.serving.signature import NUMPY_TYPES
from timonel.serving.status import Code, StatusError

tf = pytest.importorskip("tensorflow")

NUMERIC = sorted(name for name in NUMPY_TYPES if name != "DT_STRING")
FLOATS = ["DT_FLOAT", "DT_DOUBLE", "DT_COMPLEX64", "DT_COMPLEX128"]
shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5)
FIELDS = [
    field.name for field in tensor_pb2.TensorProto.DESCRIPTOR.fields if field.name.endswith("_val")
]


def some(dtype, shape, data):
    """An array of small numbers, which every type can hold."""
    numbers = data.draw(hnp.arrays(np.int64, shape, elements=st.integers(0, 1)))
    return numbers.astype(NUMPY_TYPES[dtype])


def same(one, other):
    return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())


@given(st.sampled_from(NUMERIC), shapes, st.data())
def test_arrays_come_back_as_they_were(dtype, shape, data):
    array = some(dtype, shape, data)
    proto = to_proto(array)
    assert not proto.tensor_content
    assert same(from_proto("x", proto), array)
    content = tensor_pb2.TensorProto.FromString(encode(array, as_content=True))
    assert bool(content.tensor_content) == bool(array.size)
    assert same(from_proto("x", content), array)


@given(st.sampled_from(NUMERIC), shapes, st.data())
def test_tensorflow_reads_what_we_write_and_writes_what_we_read(dtype, shape, data):
    array = some(dtype, shape, data)
    assert same(tf.make_ndarray(to_proto(array)), array)
    assert same(from_proto("x", tf.make_tensor_proto(array)), array)


@given(hnp.arrays(np.float32, shapes))
def test_every_float_survives(array):
    assert same(from_proto("x", to_proto(array)), array)


@given(st.lists(st.binary()))
def test_strings_survive(texts):
    array = np.empty(len(texts), dtype=object)
    array[:] = texts
    assert tf.make_ndarray(to_proto(array)).tolist() == texts
    assert from_proto("x", to_proto(array)).tolist() == texts
    content = tensor_pb2.TensorProto.FromString(encode(array, as_content=True))
    assert from_proto("x", content).tolist() == texts
    read = tf.io.parse_tensor(content.SerializeToString(), tf.string)
    assert read.numpy().tolist() == texts


def by_tensorflow(proto):
    """What TensorFlow's C++ makes of a proto, or None if it refuses."""
    try:
        return tf.io.parse_tensor(
            proto.SerializeToString(), tf.dtypes.as_dtype(proto.dtype)
        ).numpy()
    except (tf.errors.OpError, TypeError):
        return None


@given(
    st.sampled_from([name for name in NUMERIC if name != "DT_BOOL"]),
    st.lists(st.integers(-1, 3), max_size=3),
    st.lists(st.integers(-(2**31), 2**31 - 1), max_size=70),
    st.one_of(st.none(), st.binary(max_size=40)),
)
def test_what_contradicts_itself_is_read_or_refused_as_in_tensorflow(dtype, sizes, values, content):
    proto = tensor_pb2.TensorProto(dtype=types_pb2.DataType.Value(dtype))
    for size in sizes:
        proto.tensor_shape.dim.add(size=size)
    for field in FIELDS:
        if field.endswith(("t_val", "f_val", "e_val", "x_val", "4_val")):
            fitting = [abs(value) if field.startswith("u") else value for value in values]
            if field not in ("resource_handle_val", "variant_val"):
                getattr(proto, field).extend(fitting)
    if content is not None:
        proto.tensor_content = content
    expected = by_tensorflow(proto)
    if expected is None:
        with pytest.raises(StatusError, match=r"^INVALID_ARGUMENT: tensor parsing error: x$"):
            from_proto("x", proto)
    else:
        assert same(from_proto("x", proto), np.asarray(expected))


@pytest.mark.parametrize("dtype", FLOATS)
def test_many_floats_and_a_field_of_another_release(dtype):
    array = np.arange(100).astype(NUMPY_TYPES[dtype])
    # Field 100 as a number, as four and as eight bytes.
    unknown = b"\xa0\x06\x05" + b"\xa5\x06abcd" + b"\xa1\x06abcdefgh"
    proto = tensor_pb2.TensorProto.FromString(unknown + encode(array) + unknown)
    assert same(from_proto("x", proto), array)


def test_the_last_value_is_repeated():
    proto = tf.make_tensor_proto(np.ones((2, 3), np.float32))
    proto.ClearField("tensor_content")
    proto.float_val.extend([1.0, 7.0])
    assert from_proto("x", proto).tolist() == [[1, 7, 7], [7, 7, 7]]
    proto.ClearField("float_val")
    assert from_proto("x", proto).tolist() == [[0, 0, 0], [0, 0, 0]]
    texts = tensor_pb2.TensorProto(dtype=7, string_val=[b"a", b"b\0"])
    texts.tensor_shape.dim.add(size=3)
    assert from_proto("x", texts).tolist() == [b"a", b"b\0", b"b\0"]
    texts.ClearField("string_val")
    assert from_proto("x", texts).tolist() == [b"", b"", b""]


def _torn(proto):
    proto.tensor_content = b"\0" * 7


def _negative(proto):
    proto.tensor_shape.dim[0].size = -1


def _unknown_rank(proto):
    proto.tensor_shape.unknown_rank = True


def _odd_type(proto):
    proto.dtype = types_pb2.DT_RESOURCE


def _no_type(proto):
    proto.dtype = types_pb2.DT_INVALID


def _type_of_the_future(proto):
    proto.dtype = 99


def _torn_texts(proto):
    proto.dtype = types_pb2.DT_STRING
    proto.tensor_content = b"\x01\x02ab"


def _endless_text(proto):
    proto.dtype = types_pb2.DT_STRING
    proto.tensor_content = b"\xff" * 20


def _larger_than_any_message(proto):
    proto.tensor_shape.dim[0].size = 2**40


def _many_strings(proto):
    proto.Clear()
    proto.dtype = types_pb2.DT_STRING
    proto.string_val.append(b"")
    proto.tensor_shape.dim.add(size=500_001)  # the last value would be repeated


def _a_long_string_again_and_again(proto):
    proto.Clear()
    proto.dtype = types_pb2.DT_STRING
    proto.string_val.append(b"x" * 2**20)
    proto.tensor_shape.dim.add(size=9)


@pytest.mark.parametrize(
    "spoil",
    [
        _torn,
        _many_strings,
        _a_long_string_again_and_again,
        _negative,
        _unknown_rank,
        _odd_type,
        _no_type,
        _type_of_the_future,
        _torn_texts,
        _endless_text,
        _larger_than_any_message,
    ],
)
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

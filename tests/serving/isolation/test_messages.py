from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from timonel.serving.isolation.messages import (
    ArrayLocation,
    ProtocolError,
    pack,
    pack_signatures,
    unpack,
    unpack_signatures,
)
from timonel.serving.isolation.packets import (
    FrameKind,
    by_reference,
    inline,
    read_frames,
    release,
    released,
)
from timonel.serving.signature import NUMPY_TYPES, STRING, Signature, TensorSpec
from timonel.serving.status import StatusError

SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
FIELDS = st.lists(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text() | st.floats(0, 1e300),
    max_size=4,
)


@st.composite
def arrays(draw):
    dtype = draw(st.sampled_from(sorted(NUMPY_TYPES)))
    shape = draw(SHAPES)
    count = int(np.prod(shape))
    if dtype == STRING:
        array = np.empty(count, object)
        array[:] = draw(st.lists(st.binary(max_size=70), min_size=count, max_size=count))
        return array.reshape(shape)
    numpy_type = NUMPY_TYPES[dtype]
    raw = draw(
        st.binary(min_size=count * numpy_type.itemsize, max_size=count * numpy_type.itemsize)
    )
    array = np.frombuffer(raw, numpy_type).reshape(shape)
    # As decoders and models give them: transposed, sliced backwards, or as they lie.
    return draw(st.sampled_from([array, array.T, array[::-1] if shape else array]))


def never(*_):
    raise AssertionError("nothing is elsewhere")


def same(left, right):
    assert left.dtype == right.dtype
    assert left.shape == right.shape
    assert left.tolist() == right.tolist() if left.dtype == object else True
    assert left.dtype == object or left.tobytes() == right.tobytes()


@given(FIELDS, st.dictionaries(st.text(max_size=5), arrays(), max_size=4), st.booleans())
def test_what_is_packed_is_unpacked(fields, given_arrays, in_memory):
    content = pack(fields, given_arrays)
    if in_memory:
        raw = np.full(content.size + 64, 0xEE, np.uint8)
        content.write_to(raw)
        assert (raw[content.size :] == 0xEE).all()
    else:
        raw = np.frombuffer(content.as_bytes(), np.uint8)
        assert len(raw) == content.size
    found, found_arrays = unpack(raw, never)
    assert found == fields
    assert list(found_arrays) == list(given_arrays)
    for name, array in given_arrays.items():
        same(found_arrays[name], array)


@given(arrays().filter(lambda array: array.dtype != object))
def test_arrays_that_are_elsewhere_are_named_by_their_place(array):
    content = pack([1], {"x": array, "y": np.array(7)}, {"x": ArrayLocation(3, 128)})

    def find(segment, offset, length):
        assert (segment, offset) == (3, 128)
        raw = np.frombuffer(array.tobytes(), np.uint8)
        assert len(raw) == length
        return raw

    _, found = unpack(np.frombuffer(content.as_bytes(), np.uint8), find)
    same(found["x"], array)
    assert found["y"] == 7


@given(st.binary(max_size=300))
def test_nonsense_is_told(raw):
    with pytest.raises(ProtocolError):
        unpack(np.frombuffer(raw, np.uint8), never)


@given(arrays(), st.data())
def test_damaged_messages_are_told_or_give_arrays_within_them(array, data):
    raw = bytearray(pack(["s", None], {"x": array}).as_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        _, found = unpack(np.frombuffer(raw, np.uint8), lambda *_: np.zeros(0, np.uint8))
    except ProtocolError:
        return
    assert sum(a.nbytes for a in found.values() if a.dtype != object) <= len(raw)


@pytest.mark.parametrize(
    "array",
    [np.array(["text"]), np.array([b"text"]), np.array([1], ">i4"), np.array([1, "a"], object)],
    ids=str,
)
def test_other_types_are_refused(array):
    with pytest.raises(StatusError, match="expected x to h"):
        pack([], {"x": array})


def test_views_need_no_copy():
    array = np.arange(6, dtype=ml_dtypes.bfloat16)
    raw = np.zeros(1024, np.uint8)
    pack([], {"x": array}).write_to(raw)
    _, found = unpack(raw, never)
    assert np.shares_memory(found["x"], raw)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(list(FrameKind)), st.integers(0, 2**64 - 1), st.binary(max_size=99)
        ),
        max_size=5,
    )
)
def test_frames_are_read_as_they_were_written(given_frames):
    packet = b"".join(inline(kind, number, content) for kind, number, content in given_frames)
    packet += by_reference(FrameKind.ANSWER, 5, 2, 64, 2**40)
    *frames, last = read_frames(packet)
    assert [(f.kind, f.number, f.content.tobytes()) for f in frames] == given_frames
    assert (last.segment, last.offset, last.length) == (2, 64, 2**40)
    assert not len(last.content)


@given(st.binary(min_size=1, max_size=80))
def test_damaged_packets_are_told(packet):
    try:
        frames = list(read_frames(packet))
    except ProtocolError:
        return
    assert frames


@given(st.lists(st.tuples(st.integers(0, 2**31), st.integers(0, 2**48)), max_size=20))
def test_blocks_are_given_back_by_place(places):
    (frame,) = read_frames(release(places))
    assert released(frame) == places


def test_released_places_come_in_pairs():
    (frame,) = read_frames(inline(FrameKind.RELEASE, 0, bytes(24)))
    with pytest.raises(ProtocolError):
        released(frame)


def test_signatures_travel_whole():
    signatures = {
        "a": Signature(
            "a",
            {"x": TensorSpec("x:0", "DT_FLOAT", (-1, 2)), "z": TensorSpec("z:0", "DT_STRING")},
            {"y": TensorSpec("y:0", "DT_HALF", ())},
            "tensorflow/serving/predict",
            {"z": np.array([b"none"], object)},
        ),
        "b": Signature("b", {}, {}, defaults={"z": np.array(1.5)}),
    }
    fields, defaults = pack_signatures(signatures, "a_b")
    sent = np.frombuffer(pack(fields, defaults).as_bytes(), np.uint8)
    fields, defaults = unpack(sent, never)
    found, platform = unpack_signatures(fields, defaults)
    assert platform == "a_b"
    assert found.keys() == signatures.keys()
    for name, signature in signatures.items():
        assert found[name].inputs == signature.inputs
        assert found[name].outputs == signature.outputs
        assert (found[name].name, found[name].method_name) == (name, signature.method_name)
        assert found[name].defaults.keys() == signature.defaults.keys()
        for key, value in signature.defaults.items():
            same(found[name].defaults[key], value)


@pytest.mark.parametrize(
    "fields", [[], [None, ""], [[1], ""], [[["a"]], ""], [[["a", "a", [["x"]], [], "", {}]], ""]]
)
def test_damaged_signatures_are_told(fields):
    with pytest.raises(ProtocolError):
        unpack_signatures(fields, {})

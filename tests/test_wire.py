import pytest
from google.protobuf import wrappers_pb2
from hypothesis import given
from hypothesis import strategies as st

from timonel.wire import tag, varint


@given(st.integers(-(2**63), 2**63 - 1).filter(bool))
@pytest.mark.parametrize("edge", [None, 1, 127, 128, 2**14 - 1, 2**14, 2**63 - 1, -1, -(2**63)])
def test_numbers_are_written_as_protobuf_writes_them(edge, value):
    value = value if edge is None else edge
    assert b"\x08" + varint(value) == wrappers_pb2.Int64Value(value=value).SerializeToString()


def test_zero_which_protobuf_leaves_out_is_one_byte():
    assert varint(0) == b"\0"


def test_a_field_begins_as_protobuf_begins_it():
    text = wrappers_pb2.StringValue(value="x").SerializeToString()
    assert tag(1) + varint(1) + b"x" == text
    assert len(tag(15)) == 1
    assert len(tag(16)) == 2

"""Encode and decode tf.train.Example without TensorFlow.

The encoder is hand-written and sorts features by name, so that the same values give the same
bytes under every protobuf release. The decoder uses a private descriptor pool, because TensorFlow
registers messages of the same names in the default pool when it is imported.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory

from timonel.data.schema import KEY_FEATURE
from timonel.errors import CorruptError
from timonel.wire import tag, varint

Value = bytes | str | int | float
Feature = Value | Sequence[Value]
_TAG = [tag(number) for number in range(4)]
_FLOAT = struct.Struct("<f")
_PACKAGE = "timonel.example"
_FIELD = descriptor_pb2.FieldDescriptorProto


def encode_example(features: Mapping[str, Feature]) -> bytes:
    """Return features by name as a serialised tf.train.Example; an empty sequence has no values."""
    entries: list[bytes] = []
    for name in sorted(features):
        value = features[name]
        if isinstance(value, str):
            value = value.encode()
        if isinstance(value, bytes):
            entries += _bytes_head(name, len(value)), value  # so that images are copied once
        elif type(value) is float:
            # Rows are mostly single floats, whose encodings differ in the last four bytes only.
            entries.append(_float_head(name) + _FLOAT.pack(value))
        elif type(value) is int:
            entries.append(_int_entry(name, value))  # mostly a label
        else:
            entries.append(_entry(name, value))
    return b"".join((_TAG[1], varint(sum(map(len, entries))), *entries))


def decode_example(payload: bytes) -> dict[str, list[Any]]:
    """Decode a serialised tf.train.Example to lists of bytes, ints or floats."""
    example = _example_class()()
    try:
        example.ParseFromString(payload)
    except message.DecodeError as error:
        raise CorruptError("not a tf.train.Example") from error
    if example.feature_lists:
        raise CorruptError(
            "a tf.train.SequenceExample: write its sequences as features of a tf.train.Example"
        )
    return {name: _values(feature) for name, feature in example.features.feature.items()}


def features_of(payload: bytes) -> dict[str, Any]:
    """Return the features of a record.

    A feature with one value is a scalar, others are lists. Text is bytes, as in TensorFlow, except
    for the key.
    """
    features: dict[str, Any] = {
        name: values[0] if len(values) == 1 else values
        for name, values in decode_example(payload).items()
    }
    if KEY_FEATURE in features:
        features[KEY_FEATURE] = features[KEY_FEATURE].decode()
    return features


@functools.lru_cache(maxsize=4096)
def _float_head(name: str) -> bytes:
    entry = _field(1, name.encode()) + _field(2, _encode_feature([0.0]))
    return _field(1, entry)[: -_FLOAT.size]


def _bytes_head(name: str, length: int) -> bytes:
    """Return the encoding of a feature of one value of bytes, up to the value."""
    head = _TAG[1] + varint(length)
    head = _TAG[1] + varint(len(head) + length) + head
    head = _encode_name(name) + _TAG[2] + varint(len(head) + length) + head
    return _TAG[1] + varint(len(head) + length) + head


@functools.lru_cache(maxsize=4096)
def _int_entry(name: str, value: int) -> bytes:
    return _entry(name, value)


@functools.lru_cache(maxsize=4096)
def _encode_name(name: str) -> bytes:
    return _field(1, name.encode())


def _entry(name: str, feature: Feature) -> bytes:
    return _field(1, _encode_name(name) + _field(2, _encode_feature(feature)))


def _encode_feature(feature: Feature) -> bytes:
    values = [feature] if isinstance(feature, bytes | str | int | float) else list(feature)
    if not values:
        return b""
    first = values[0]
    if isinstance(first, bytes | str):
        texts = (value.encode() if isinstance(value, str) else value for value in values)
        return _field(1, b"".join(_field(1, text) for text in texts))  # type: ignore[arg-type] # one type
    if isinstance(first, int):
        return _field(3, _field(1, b"".join(varint(int(value)) for value in values)))
    return _field(2, _field(1, struct.pack(f"<{len(values)}f", *values)))


def _field(number: int, content: bytes) -> bytes:
    # Wire type 2: length-delimited.
    return b"".join((_TAG[number], varint(len(content)), content))


def _values(feature: Any) -> list[Any]:
    kind = feature.WhichOneof("kind")
    return list(getattr(feature, kind).value) if kind else []


@functools.cache
def _example_class() -> type[Any]:
    pool = descriptor_pool.DescriptorPool()
    pool.Add(_file_descriptor())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.Example"))


def _file_descriptor() -> descriptor_pb2.FileDescriptorProto:
    """Return the message types of tensorflow/core/example/{example,feature}.proto."""
    file = descriptor_pb2.FileDescriptorProto(
        name="timonel/example.proto", package=_PACKAGE, syntax="proto3"
    )
    lists = (
        ("Bytes", _FIELD.TYPE_BYTES),
        ("Float", _FIELD.TYPE_FLOAT),
        ("Int64", _FIELD.TYPE_INT64),
    )
    for name, type_ in lists:
        holder = file.message_type.add(name=f"{name}List")
        holder.field.add(name="value", number=1, type=type_, label=_FIELD.LABEL_REPEATED)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, (name, _) in enumerate(lists, start=1):
        field = _message_field(feature, f"{name.lower()}_list", number, f"{name}List")
        field.oneof_index = 0
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=_FIELD.TYPE_STRING, label=_FIELD.LABEL_OPTIONAL)
    _message_field(entry, "value", 2, "Feature")
    _message_field(features, "feature", 1, "Features.FeatureEntry").label = _FIELD.LABEL_REPEATED
    example = file.message_type.add(name="Example")
    _message_field(example, "features", 1, "Features")
    # Of a SequenceExample, whose context is encoded as the features of an Example.
    example.field.add(
        name="feature_lists", number=2, type=_FIELD.TYPE_BYTES, label=_FIELD.LABEL_OPTIONAL
    )
    return file


def _message_field(
    holder: descriptor_pb2.DescriptorProto, name: str, number: int, type_name: str
) -> descriptor_pb2.FieldDescriptorProto:
    return holder.field.add(
        name=name,
        number=number,
        type=_FIELD.TYPE_MESSAGE,
        label=_FIELD.LABEL_OPTIONAL,
        type_name=f".{_PACKAGE}.{type_name}",
    )

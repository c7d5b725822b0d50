"""Serialize messages between processes: fields as JSON, arrays as raw memory. Pure.

    content   head length (8 bytes) | head (JSON) | padding | data
    head      [fields, [[name, data type, shape, offset, length], ...]]
    data      each array at an offset that is a multiple of 64

An array that is already in shared memory is referred to by its place: its entry also has ``segment,
offset in the segment``. Strings are packed: n+1 offsets (uint64), then the bytes. Received data is
not trusted: reading it either raises `ProtocolError` or returns arrays within the content.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from timonel.serving.isolation.shared_memory import ALIGNMENT
from timonel.serving.signature import (
    DTYPE_NAMES,
    NUMPY_TYPES,
    STRING,
    Array,
    Signature,
    TensorSpec,
)
from timonel.serving.status import invalid_argument

Bytes = NDArray[np.uint8]
Find = Callable[[int, int, int], Bytes]
"""Look-up of bytes by segment, offset and length; raises `ProtocolError`."""

_LENGTH = struct.Struct("<Q")
_OFFSETS = np.dtype(np.uint64)


class ProtocolError(Exception):
    """The other side has sent invalid data."""


@dataclass(frozen=True)
class ArrayLocation:
    """Place of an array in shared memory."""

    segment: int
    offset: int


@dataclass(frozen=True)
class Content:
    """A message that is not serialized yet.

    Args:
        head: The first bytes, up to the data.
        parts: Offsets from the end of the head, and the data there.
        size: Total size in bytes.
    """

    head: bytes
    parts: Sequence[tuple[int, Array | bytes]]
    size: int

    def as_bytes(self) -> bytes:
        """Return the content as one bytes object."""
        pieces = [self.head]
        at = 0
        for offset, part in self.parts:
            data = part if isinstance(part, bytes) else part.tobytes()
            pieces += (bytes(offset - at), data)
            at = offset + len(data)
        return b"".join(pieces)

    def write_to(self, target: Bytes) -> None:
        """Write the content to memory of at least `size` bytes."""
        start = len(self.head)
        target[:start] = np.frombuffer(self.head, np.uint8)
        for offset, part in self.parts:
            where = target[start + offset :]
            if isinstance(part, bytes):
                where[: len(part)] = np.frombuffer(part, np.uint8)
            else:
                # One copy, whatever the array's memory layout.
                np.copyto(where[: part.nbytes].view(part.dtype).reshape(part.shape), part)


def pack(
    fields: Sequence[Any],
    arrays: Mapping[str, Array] | None = None,
    places: Mapping[str, ArrayLocation] | None = None,
) -> Content:
    """Prepare fields and arrays for sending.

    Args:
        fields: JSON-compatible values.
        arrays: Arrays by name, of the types in `NUMPY_TYPES`; strings are bytes.
        places: Places of those arrays that are in memory shared with the other side.

    Raises:
        StatusError: An array has another type.
    """
    entries: list[list[Any]] = []
    parts: list[tuple[int, Array | bytes]] = []
    at = end = 0
    for name, array in (arrays or {}).items():
        dtype = DTYPE_NAMES.get(array.dtype)
        if dtype is None:
            raise invalid_argument(f"expected {name} to have a tensor's type, got {array.dtype}")
        place = places.get(name) if places else None
        if place is not None:
            entries.append([name, dtype, array.shape, 0, array.nbytes, place.segment, place.offset])
            continue
        part: Array | bytes = _pack_strings(name, array) if dtype == STRING else array
        length = len(part) if isinstance(part, bytes) else part.nbytes
        entries.append([name, dtype, array.shape, at, length])
        parts.append((at, part))
        end = at + length
        at = _padded(end)
    text = orjson.dumps([fields, entries])
    head = _padded(_LENGTH.size + len(text))
    size = head + end
    return Content((_LENGTH.pack(len(text)) + text).ljust(head, b" "), parts, size)


def unpack(content: Bytes, find: Find) -> tuple[list[Any], dict[str, Array]]:
    """Return the fields and arrays of a packed message.

    Arrays are views if possible.

    Args:
        content: The whole content; more bytes may follow.
        find: Returns the bytes of arrays that are elsewhere in shared memory.

    Raises:
        ProtocolError: The content is invalid.
    """
    try:
        (length,) = _LENGTH.unpack(content[: _LENGTH.size].tobytes())
        fields, entries = orjson.loads(content[_LENGTH.size : _LENGTH.size + length].tobytes())
        data = content[_padded(_LENGTH.size + length) :]
        return list(fields), {str(entry[0]): _array(entry, data, find) for entry in entries}
    except (ValueError, TypeError, KeyError, IndexError, OverflowError, struct.error) as error:
        raise ProtocolError(f"damaged message: {error}") from error


def _array(entry: Sequence[Any], data: Bytes, find: Find) -> Array:
    _, dtype, shape, offset, length, *place = entry
    if not all(type(size) is int and size >= 0 for size in (*shape, offset, length)):
        raise ValueError("negative sizes")
    raw = find(place[0], place[1], length) if place else data[offset : offset + length]
    if len(raw) != length:
        raise ValueError("an array goes beyond the end")
    count = math.prod(shape)
    if dtype == STRING:
        return _unpack_strings(raw, count).reshape(shape)
    numpy_type = NUMPY_TYPES[dtype]
    if count * numpy_type.itemsize != length:
        raise ValueError("a shape does not fit its data")
    return raw.view(numpy_type).reshape(shape)


def _pack_strings(name: str, array: Array) -> bytes:
    values = array.reshape(-1).tolist()
    offsets = np.zeros(len(values) + 1, _OFFSETS)
    try:
        joined = b"".join(values)
        np.cumsum(np.fromiter(map(len, values), _OFFSETS, len(values)), out=offsets[1:])
    except TypeError as error:
        raise invalid_argument(f"expected {name} to hold bytes only") from error
    return offsets.tobytes() + joined


def _unpack_strings(raw: Bytes, count: int) -> Array:
    start = (count + 1) * _OFFSETS.itemsize
    if start > len(raw):
        raise ValueError("strings without their offsets")
    offsets = raw[:start].view(_OFFSETS).tolist()
    blob = raw[start:].tobytes()
    if (
        offsets[0] != 0
        or offsets[-1] != len(blob)
        or any(a > b for a, b in itertools.pairwise(offsets))
    ):
        raise ValueError("strings that do not fit their data")
    strings = np.empty(count, object)
    strings[:] = [blob[a:b] for a, b in itertools.pairwise(offsets)]
    return strings


def _padded(length: int) -> int:
    return -(-length // ALIGNMENT) * ALIGNMENT


def pack_signatures(
    signatures: Mapping[str, Signature], platform: str
) -> tuple[list[Any], dict[str, Array]]:
    """Convert signatures and platform to JSON values, and number the default arrays."""
    defaults: dict[str, Array] = {}
    entries: list[Any] = []
    for key, signature in signatures.items():
        numbers = {}
        for name, value in signature.defaults.items():
            numbers[name] = str(len(defaults))
            defaults[numbers[name]] = value
        inputs, outputs = _pack_specs(signature.inputs), _pack_specs(signature.outputs)
        entries.append([key, signature.name, inputs, outputs, signature.method_name, numbers])
    return [entries, platform], defaults


def unpack_signatures(
    fields: Sequence[Any], arrays: Mapping[str, Array]
) -> tuple[dict[str, Signature], str]:
    """Convert the result of `pack_signatures` back.

    Raises:
        ProtocolError: The fields are invalid.
    """
    try:
        entries, platform = fields
        signatures = {
            key: Signature(
                name=name,
                inputs=_unpack_specs(inputs),
                outputs=_unpack_specs(outputs),
                method_name=method_name,
                # Copies: defaults live long, and must not keep shared memory in use.
                defaults={each: arrays[number].copy() for each, number in numbers.items()},
            )
            for key, name, inputs, outputs, method_name, numbers in entries
        }
        return signatures, str(platform)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ProtocolError(f"invalid signatures: {error}") from error


def _pack_specs(specs: Mapping[str, TensorSpec]) -> list[Any]:
    return [
        [name, spec.tensor, spec.dtype, spec.shape, spec.encoding, spec.parts]
        for name, spec in specs.items()
    ]


def _unpack_specs(entries: Sequence[Any]) -> dict[str, TensorSpec]:
    return {
        name: TensorSpec(
            tensor, dtype, None if shape is None else tuple(shape), encoding, tuple(parts)
        )
        for name, tensor, dtype, shape, encoding, parts in entries
    }

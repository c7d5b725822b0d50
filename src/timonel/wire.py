"""Protobuf wire format, for reading and writing messages without message objects."""

from __future__ import annotations

_BYTE = [bytes((value,)) for value in range(128)]


def varint(value: int) -> bytes:
    """Encode an integer as a protobuf varint, negative ones in 64 bits."""
    if 0 <= value <= 0x7F:
        return _BYTE[value]
    value &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def tag(number: int) -> bytes:
    """Return the tag of a length-delimited field (text, bytes or message)."""
    return varint(number << 3 | 2)


def read_varint(raw: bytes, at: int) -> tuple[int, int]:
    """Decode the varint at an offset; return it and the next offset."""
    byte = raw[at]
    at += 1
    if byte < 0x80:
        return byte, at
    value, shift = byte & 0x7F, 7
    while True:
        byte = raw[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("expected a number of 64 bits")

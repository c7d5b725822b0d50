"""Protobuf's wire format, for what is written by hand as building messages would cost more."""

from __future__ import annotations

_BYTE = [bytes((value,)) for value in range(128)]


def varint(value: int) -> bytes:
    """Return a whole number as protobuf writes it; a negative one in 64 bits."""
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
    """Return what stands before a field of text, bytes or a message: its length comes next."""
    return varint(number << 3 | 2)

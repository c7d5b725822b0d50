"""Summaries of answers, to compare those of two versions to the same request. Pure.

Two summaries tell whether the answers agree, and nothing else to readers without the request's ID,
which is random and known to the gateway and the two servers only: names and contents are hashed
with the ID, and a keystream made from it is added to numbers. So the summaries need no protection.

Two answers agree if their outputs have the same names, types and shapes, and

- integers, booleans and strings are equal;
- floats with several numbers in the last of at least two dimensions, such as scores of classes,
  have their maximum at the same position in each row, or NaN in the same rows;
- other floats are close: ``abs(asinh(10 * a) - asinh(10 * b)) <= 0.01``, which is 0.001 near zero
  and 1 % for large numbers.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from timonel.serving.signature import Array

MAX_NUMBERS: Final = 100
"""Floats of an answer that are compared as numbers; further ones are not compared."""
_SCALE, _UNIT, _TOLERANCE = 10.0, 1e-5, 1000
_INFINITE, _NAN, _MODULUS = 2**29, 2**30, 2**32


class Answer(NamedTuple):
    """Summary of an answer.

    Args:
        name: Hash of the request's ID.
        contents: Keyed hash of everything that must be equal; empty if the request failed.
        numbers: Masked floats that must be close: 32-bit numbers in hexadecimal.
    """

    name: str
    contents: str = ""
    numbers: str = ""


def summarize(secret: str, outputs: Sequence[Mapping[str, Array]] | None) -> Answer:
    """Return the summary of an answer: the outputs of each execution, or None if it failed."""
    key = hashlib.blake2b(secret.encode(), digest_size=32).digest()
    name = hashlib.blake2b(b"name", key=key, digest_size=12).hexdigest()
    if outputs is None:
        return Answer(name)
    contents = hashlib.blake2b(b"contents", key=key, digest_size=16)
    numbers: list[Array] = []
    for execution in outputs:
        for output, array in sorted(execution.items()):
            floats = array.astype(np.float32) if array.dtype.kind == "V" else array  # bfloat16
            text = f"{output}\0{_type_name(array)}\0{array.shape}\0"
            contents.update(struct.pack("<I", len(text.encode())) + text.encode())
            if floats.dtype.kind != "f":
                contents.update(_exact(array))
            elif array.ndim >= 2 and array.shape[-1] > 1:
                contents.update(_positions(floats).tobytes())
            else:
                missing = MAX_NUMBERS - sum(map(len, numbers))
                numbers.append(_quantized(floats.reshape(-1)[:missing]))
    plain = np.concatenate([np.zeros(0, np.int64), *numbers])
    stream = hashlib.shake_128(b"numbers" + key).digest(4 * plain.size)
    masked = (plain + np.frombuffer(stream, "<u4")) % _MODULUS
    return Answer(name, contents.hexdigest(), masked.astype("<u4").tobytes().hex())


def agree(one: Answer, other: Answer) -> bool | None:
    """Return whether two answers to one request agree; None if both versions failed."""
    if not one.contents and not other.contents:
        return None
    if one.contents != other.contents or len(one.numbers) != len(other.numbers):
        return False
    distances = (_read(one) - _read(other)) % _MODULUS
    return bool((np.minimum(distances, _MODULUS - distances) <= _TOLERANCE).all())


def _read(answer: Answer) -> Array:
    return np.frombuffer(bytes.fromhex(answer.numbers), "<u4").astype(np.int64)


def _type_name(array: Array) -> str:
    # Strings are objects or arrays as wide as the longest one.
    return "string" if array.dtype.kind in "OSU" else array.dtype.name


def _exact(array: Array) -> bytes:
    if _type_name(array) != "string":
        return array.tobytes()
    texts = [each.encode() if isinstance(each, str) else each for each in array.ravel().tolist()]
    return b"".join(struct.pack("<Q", len(text)) + text for text in texts)


def _positions(array: Array) -> Array:
    """Return the position of the maximum of each row; -1 for a row with NaN."""
    return np.where(np.isnan(array).any(-1), -1, array.argmax(-1)).astype("<i8")


def _quantized(array: Array) -> Array:
    """Return integers that differ by at most the tolerance if the floats are close."""
    with np.errstate(over="ignore"):
        spread = np.arcsinh(array.astype(np.float64) * _SCALE) / _UNIT
    numbers = np.nan_to_num(spread, nan=_NAN, posinf=_INFINITE, neginf=-_INFINITE)
    return np.rint(numbers).astype(np.int64)

"""Tensor declarations in Python code, and checks of arrays against them. Pure.

A declaration maps a name to a data type and a shape, such as ``{"x": ("float32", [None, 4])}``.
None is an unknown size, or instead of a shape, an unknown rank. Data types are numpy's names or
types, and ``"string"``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from timonel.serving.signature import (
    DTYPE_NAMES,
    NUMPY_TYPES,
    PREDICT,
    STRING,
    Array,
    Signature,
    TensorSpec,
    fits,
    narrowed,
)
from timonel.serving.status import Code, StatusError, invalid_argument

_STRINGS: tuple[Any, ...] = ("string", "str", "bytes", str, bytes, object)
_TEXT_KINDS = "USO"

Specs = Mapping[str, TensorSpec]


def declared(name: str, inputs: Any, outputs: Any, *, where: str) -> Signature:
    """Return the signature that code declares."""
    return Signature(
        name,
        declared_specs(inputs, where=f"inputs of {where}"),
        declared_specs(outputs, where=f"outputs of {where}"),
        method_name=PREDICT,
    )


def declared_specs(declaration: Any, *, where: str) -> dict[str, TensorSpec]:
    """Return the tensors of a declaration, in its order."""
    example = '{"x": ("float32", [None, 4])}'
    if not isinstance(declaration, Mapping) or not declaration:
        raise refusal(f"declare the {where} as in {example}, got {declaration!r}")
    specs = {}
    for name, value in declaration.items():
        try:
            dtype, shape = value
        except (TypeError, ValueError):
            raise refusal(
                f"expected {name!r} of the {where} to have a type and a shape as in {example}, "
                f"got {value!r}"
            ) from None
        place = f"{name!r} of the {where}"
        specs[str(name)] = TensorSpec(str(name), _dtype(dtype, place), _shape(shape, place))
    return specs


def check_inputs(inputs: Mapping[str, Array], specs: Specs) -> None:
    """Check a client's arrays against the declared inputs."""
    for name, spec in specs.items():
        array = inputs[name]
        if array.dtype != NUMPY_TYPES[spec.dtype] or not fits(spec.shape, array.shape):
            raise invalid_argument(f"expected {name} to be {_spec(spec)}, got {_array(array)}")


def fitted(given: Any, specs: Specs, *, giver: str) -> dict[str, Array]:
    """Convert the values returned by code to the declared arrays.

    Strings become bytes; numbers get the declared type if this loses no more than precision: a
    number beyond its range is an error.

    Args:
        given: A mapping from names to anything that numpy can convert to arrays.
        giver: The function that returned the values, for messages.
    """
    if not isinstance(given, Mapping):
        raise _defect(f"expected {giver} to return a dict of arrays, got {type(given).__name__}")
    if given.keys() != specs.keys():
        names = ", ".join(map(str, given)) or "nothing"
        raise _defect(f"{giver} returned {names} instead of {', '.join(specs)}")
    return {name: _fitted(given[name], spec, f"{name} of {giver}") for name, spec in specs.items()}


def _fitted(value: Any, spec: TensorSpec, place: str) -> Array:
    try:
        array = _strings(value) if spec.dtype == STRING else np.asarray(value)
    except (ValueError, TypeError) as error:
        raise _defect(f"cannot convert {place} to {_spec(spec)}: {_line(error)}") from error
    if spec.dtype != STRING:
        if not np.can_cast(array.dtype, NUMPY_TYPES[spec.dtype], "same_kind"):
            raise _defect(f"expected {place} to be {_spec(spec)}, got {_array(array)}")
        try:
            array = narrowed(array, NUMPY_TYPES[spec.dtype])
        except OverflowError as error:
            raise _defect(f"expected {place} to be {_spec(spec)}, got {error}") from None
    if not fits(spec.shape, array.shape):
        raise _defect(f"expected {place} to be {_spec(spec)}, got {_array(array)}")
    return array


def _strings(value: Any) -> Array:
    if isinstance(value, bytes | str):
        return np.array(_bytes(value), dtype=object)
    # Convert lists to object arrays: numpy's own string arrays lose trailing zeros.
    is_list = isinstance(value, list | tuple)
    source = np.array(value, dtype=object) if is_list else np.asarray(value)
    if source.dtype.kind not in _TEXT_KINDS:
        raise TypeError(f"it is an array of {source.dtype}")
    result = np.empty(source.size, dtype=object)
    result[:] = [_bytes(each) for each in source.reshape(-1).tolist()]
    return result.reshape(source.shape)


def _bytes(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    if isinstance(value, bytes):
        return value
    raise TypeError(f"it contains {type(value).__name__}")


def _dtype(value: Any, place: str) -> str:
    value = getattr(value, "as_numpy_dtype", value)
    if any(value is each or (isinstance(value, str) and value == each) for each in _STRINGS):
        return STRING
    try:
        name = DTYPE_NAMES.get(np.dtype(value))
    except TypeError:
        name = None
    if name is None:
        raise refusal(f"expected {place} to have a type such as float32 or string, got {value!r}")
    return name


def _shape(value: Any, place: str) -> tuple[int, ...] | None:
    if value is None:
        return None
    if _is_list(value):
        sizes = tuple(-1 if size is None else size for size in value)
        if all(isinstance(size, int) and size >= -1 for size in sizes):
            return sizes
    raise refusal(f"expected {place} to have a shape such as [None, 4], got {value!r}")


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _spec(spec: TensorSpec) -> str:
    shape = "?" if spec.shape is None else ", ".join("?" if s < 0 else str(s) for s in spec.shape)
    return f"{_type_name(NUMPY_TYPES[spec.dtype])} [{shape}]"


def _array(array: Array) -> str:
    return f"{_type_name(array.dtype)} [{', '.join(map(str, array.shape))}]"


def _type_name(dtype: np.dtype[Any]) -> str:
    return "string" if dtype.kind in _TEXT_KINDS else str(dtype)


def _line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def refusal(message: str) -> StatusError:
    """Return the error for code that cannot be loaded."""
    return StatusError(Code.FAILED_PRECONDITION, message)


def _defect(message: str) -> StatusError:
    return StatusError(Code.INTERNAL, message)

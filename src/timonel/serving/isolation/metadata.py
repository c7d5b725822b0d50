"""Convert a model's metadata to and from fields of a message. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from timonel.serving.isolation.messages import ProtocolError
from timonel.serving.signature import Array, Signature, TensorSpec


def to_fields(
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
        inputs, outputs = _specs(signature.inputs), _specs(signature.outputs)
        entries.append([key, signature.name, inputs, outputs, signature.method_name, numbers])
    return [entries, platform], defaults


def from_fields(
    fields: Sequence[Any], arrays: Mapping[str, Array]
) -> tuple[dict[str, Signature], str]:
    """Convert the result of `to_fields` back.

    Raises:
        ProtocolError: The fields are invalid.
    """
    try:
        entries, platform = fields
        signatures = {
            key: Signature(
                name=name,
                inputs=_read_specs(inputs),
                outputs=_read_specs(outputs),
                method_name=method_name,
                # Copies: defaults live long, and must not keep shared memory in use.
                defaults={each: arrays[number].copy() for each, number in numbers.items()},
            )
            for key, name, inputs, outputs, method_name, numbers in entries
        }
        return signatures, str(platform)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ProtocolError(f"expected signatures, got {error}") from error


def _specs(specs: Mapping[str, TensorSpec]) -> list[Any]:
    return [[name, spec.tensor, spec.dtype, spec.shape] for name, spec in specs.items()]


def _read_specs(entries: Sequence[Any]) -> dict[str, TensorSpec]:
    return {
        name: TensorSpec(tensor, dtype, None if shape is None else tuple(shape))
        for name, tensor, dtype, shape in entries
    }

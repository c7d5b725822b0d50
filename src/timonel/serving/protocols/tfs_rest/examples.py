"""Convert JSON of Classify and Regress requests to tf.train.Examples. Pure.

A number with a fraction or an exponent becomes a float, a whole number an int64: as for TensorFlow
Serving, clients must write 2.0 for a float feature.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from timonel.data.examples import Value, encode_example
from timonel.serving.protocols.tfs_rest.jsontext import echo, type_name
from timonel.serving.protocols.tfs_rest.tensors import is_b64, to_bytes
from timonel.serving.status import StatusError, invalid_argument

_INT64_MAX = 2**63 - 1
_INT64_MIN = -(2**63)
_KINDS = {bytes: "bytes", float: "float", int: "int64"}


def examples_from_json(content: Mapping[str, Any]) -> tuple[list[bytes], bytes]:
    """Return a request's examples and shared context, each as a serialized Example.

    Args:
        content: The request's JSON object with ``examples`` and optionally ``context``.

    Raises:
        StatusError: Examples are missing, or a feature has a value that no Example can hold.
    """
    context = example_from_json(content["context"]) if "context" in content else b""
    if "examples" not in content:
        raise _refused(
            content, "When method is classify, key 'examples' is expected and was not found"
        )
    examples = content["examples"]
    if not isinstance(examples, list):
        raise _refused(content, "Expecting 'examples' value to be an list/array")
    if not examples:
        raise _refused(content, "'examples' value is an empty array")
    return [example_from_json(example) for example in examples], context


def example_from_json(value: object) -> bytes:
    """Serialize a JSON object of feature values by name as a tf.train.Example.

    Raises:
        StatusError: The value is not an object, or a feature mixes types or nests.
    """
    if not isinstance(value, dict):
        raise invalid_argument(f"Example must be JSON object but got JSON {type_name(value)}")
    try:
        return encode_example({name: _feature(name, value[name]) for name in value})
    except UnicodeEncodeError:
        # Half of a surrogate pair, which JSON can express but protobuf cannot.
        raise invalid_argument(
            "JSON Parse error: The surrogate pair in string is invalid."
        ) from None


def _feature(name: str, value: object) -> list[Value]:
    elements = value if isinstance(value, list) else [value]
    values: list[Value] = []
    kind: type | None = None
    for element in elements:
        converted = _element(name, element)
        if kind is None:
            kind = type(converted)
        if type(converted) is not kind:
            raise invalid_argument(
                f"Unexpected element type in feature: {name} expecting type: {_KINDS[kind]}"
            )
        values.append(converted)
    return values


def _element(name: str, element: object) -> bytes | float | int:
    if isinstance(element, str) or is_b64(element):
        return to_bytes(element)
    if isinstance(element, bool):
        return int(element)
    if isinstance(element, int):
        return _whole(name, element)
    if isinstance(element, float):
        with np.errstate(over="ignore"):
            return float(np.float32(element))
    raise invalid_argument(
        f"Feature: {name} has element with unexpected JSON type: {type_name(element)}"
    )


def _whole(name: str, element: int) -> int | float:
    if _INT64_MIN <= element <= _INT64_MAX:
        return element
    if 0 < element < 2**64:
        raise invalid_argument(f"Feature: {name} has uint64_t element. Only int64_t is supported.")
    # The parser reads numbers beyond all integer types as floats.
    with np.errstate(over="ignore"):
        return float(np.float32(element))


def _refused(content: Mapping[str, Any], why: str) -> StatusError:
    return invalid_argument(f"JSON Value: {echo(content)} {why}")

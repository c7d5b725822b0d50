"""Classify and Regress requests over REST: tf.train.Examples in JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from timonel.data.examples import Value, encode_example
from timonel.serving.asgi import Response
from timonel.serving.codec.jsontext import echo, parse, type_name
from timonel.serving.codec.tensors import is_b64, to_bytes
from timonel.serving.codec.writer import dumps, for_json, is_finite, text_or_b64
from timonel.serving.inference import classification
from timonel.serving.inference.classification import Classes, PreparedRun
from timonel.serving.inference.flow import Call, Outputs, SignatureRun
from timonel.serving.manager.catalogue import ModelSpec
from timonel.serving.protocols.tfs_rest.predict import ComputeCodec, signature_name
from timonel.serving.signature import CLASSIFY, REGRESS, Array
from timonel.serving.status import StatusError, invalid_argument

_INT64_MAX = 2**63 - 1
_INT64_MIN = -(2**63)
_KINDS = {bytes: "bytes", float: "float", int: "int64"}


class ExamplesCodec(ComputeCodec):
    """A Classify or Regress request."""

    _prepared: PreparedRun

    def prepare(self, acquire: Callable[[ModelSpec], Call]) -> Sequence[SignatureRun]:
        """Decode the examples."""
        content = parse(self.unpacked())
        name = signature_name(content)
        examples, shared = examples_from_json(content)
        method = CLASSIFY if self.api == "classify" else REGRESS
        checks = self._rest.settings.check_method_names
        prepared = classification.prepare(
            acquire(self._spec), method, name, examples, shared, check_method=checks
        )
        self._prepared = prepared
        return (prepared.run,)

    def encode(self, _: Call, outputs: Sequence[Outputs]) -> Response:
        """Encode the results as JSON."""
        result = self._prepared.read(outputs[0])
        text = encode_classes(result) if isinstance(result, list) else encode_values(result)
        return Response(200, text)


def examples_from_json(content: Mapping[str, Any]) -> tuple[list[bytes], bytes]:
    """Return a request's examples and shared context, each as a serialized Example."""
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
    """Serialize a JSON object of feature values by name as a tf.train.Example."""
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


def encode_classes(rows: Classes) -> bytes:
    """Encode classes as a Classify response."""
    if not rows:
        raise invalid_argument("Cannot convert empty ClassificationResults to JSON")
    scores = np.array([[score for _, score in row] for row in rows], np.float32)
    values = for_json("", scores)
    labels = [[text_or_b64(label) for label, _ in row] for row in rows]
    pairs = [list(zip(*each, strict=True)) for each in zip(labels, values, strict=True)]
    return dumps({"results": pairs}, finite=is_finite(scores))


def encode_values(values: Array) -> bytes:
    """Encode float32 [n] as a Regress response."""
    if not values.size:
        raise invalid_argument("Cannot convert empty RegressionResults to JSON")
    return dumps({"results": for_json("", values)}, finite=is_finite(values))

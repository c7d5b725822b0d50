"""Decode and encode inference over REST. Pure.

A body is JSON, or JSON followed by the raw contents of tensors. In the latter case, the header
`HEADER_LENGTH` has the length of the JSON.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import orjson

from timonel.serving.codec.number_arrays import NumberArray, Outline, outline_of
from timonel.serving.codec.writer import array_text
from timonel.serving.inference.flow import Outputs
from timonel.serving.protocols.v2.requests import (
    BASE64,
    BINARY_DATA,
    BINARY_DATA_SIZE,
    CONTENT_TYPE,
    InferRequest,
    OutputForm,
    Parameters,
    boolean,
    is_base64,
    refuse_unsupported,
    request_parameters,
)
from timonel.serving.protocols.v2.tensors import (
    checked_shape,
    datatype_of,
    from_json,
    from_raw,
    to_raw,
    to_texts,
)
from timonel.serving.signature import Array
from timonel.serving.status import StatusError, invalid_argument

HEADER_LENGTH: Final = b"inference-header-content-length"
# Represents a byte of invalid UTF-8, which cannot be encoded again.
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def decode(body: bytes, header_length: int | None = None) -> InferRequest:
    """Decode a request body."""
    if header_length is None:
        header_length = len(body)
    if not 0 <= header_length <= len(body):
        raise invalid_argument(
            f"The body has {len(body)} bytes, but its header declares {header_length} of JSON."
        )
    text, rest = body[:header_length], memoryview(body)[header_length:]
    outline = outline_of(text)
    try:
        return _Reader(outline, rest).request()
    except StatusError:
        if not outline.arrays:
            raise
    # Invalid or unusual: read the numbers as written for the precise error.
    return _Reader(outline.whole(), rest).request()


def encode(
    request: InferRequest, model: str, version: int, outputs: Outputs
) -> tuple[bytes, int | None]:
    """Encode a response; return its body and the bytes of its JSON, None for the whole body."""
    head: dict[str, Any] = {"model_name": model, "model_version": str(version)}
    if request.request_id is not None:
        head["id"] = request.request_id
    contents: list[bytes] = []
    pieces = [orjson.dumps(head)[:-1], b',"outputs":[']
    for index, (name, array) in enumerate(outputs.items()):
        if index:
            pieces.append(b",")
        pieces += _output(name, array, request.form(name), contents)
    pieces.append(b"]}")
    text = b"".join(pieces)
    return (b"".join((text, *contents)), len(text)) if contents else (text, None)


class _Reader:
    """Reader of one request."""

    def __init__(self, outline: Outline, rest: memoryview) -> None:
        self._outline = outline
        self._rest = rest
        self._position = 0
        self._filled = 0

    def request(self) -> InferRequest:
        """Decode the request."""
        content = self._outline.content
        request_id = content.get("id")
        if request_id is not None:
            request_id = _text(content, "id", "the request")
        parameters = request_parameters(_parameters(content, "the request"))
        inputs: dict[str, Array] = {}
        for described in _objects(content, "inputs"):
            name = _text(described, "name", "an input")
            if name in inputs:
                raise invalid_argument(f"Input {name} occurs more than once.")
            inputs[name] = self._tensor(name, described)
        if self._filled != len(self._outline.arrays):
            raise invalid_argument("expected numbers in the data of inputs only")
        if self._position != len(self._rest):
            raise invalid_argument(
                f"expected {self._position} bytes of tensors after the JSON, got {len(self._rest)}"
            )
        outputs: dict[str, OutputForm] = {}
        for described in _objects(content, "outputs"):
            name = _text(described, "name", "an output")
            if name in outputs:
                raise invalid_argument(f"Output {name} occurs more than once.")
            of_output = _parameters(described, f"output {name}")
            outputs[name] = _form(of_output, default=parameters.binary_output)
        return InferRequest(inputs, outputs, request_id, parameters)

    def _tensor(self, name: str, described: Mapping[str, Any]) -> Array:
        datatype = _text(described, "datatype", f"input {name}")
        shape = described.get("shape")
        if not isinstance(shape, list):
            raise invalid_argument(f"expected the shape of input {name} to be a list")
        sizes = checked_shape(name, shape)
        parameters = _parameters(described, f"input {name}")
        data = described.get("data")
        size = parameters.get(BINARY_DATA_SIZE)
        if size is not None and data is None:
            return from_raw(name, datatype, sizes, self._take(name, size))
        if size is not None:
            raise invalid_argument(
                f"Input {name} has both data and {BINARY_DATA_SIZE}. Send only one."
            )
        data = self._outline.fill(data)
        self._filled += isinstance(data, NumberArray)
        in_base64 = is_base64(parameters)
        return from_json(name, datatype, sizes, data, self._outline, in_base64=in_base64)

    def _take(self, name: str, size: Any) -> memoryview:
        """Return the next ``size`` bytes after the JSON."""
        left = len(self._rest) - self._position
        if type(size) is not int or not 0 <= size <= left:
            raise invalid_argument(
                f"The {BINARY_DATA_SIZE} of input {name} must be at most {left}, the bytes left "
                f"after the JSON, got {reprlib.repr(size)}"
            )
        self._position += size
        return self._rest[self._position - size : self._position]


def _objects(content: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    found = content.get(key)
    if found is None:
        return []
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise invalid_argument(f"expected the {key} of the request to be a list of objects")
    return found


def _text(described: Mapping[str, Any], key: str, owner: str) -> str:
    found = described.get(key)
    if not isinstance(found, str) or _SURROGATE.search(found):
        raise invalid_argument(f"expected the {key} of {owner} to be a string")
    return found


def _parameters(described: Mapping[str, Any], owner: str) -> Parameters:
    found = described.get("parameters")
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise invalid_argument(f"expected the parameters of {owner} to be an object")
    refuse_unsupported(found, owner)
    return found


def _form(parameters: Parameters, *, default: bool) -> OutputForm:
    is_binary = boolean(BINARY_DATA, parameters.get(BINARY_DATA, default))
    return OutputForm(is_binary, is_base64(parameters))


def _output(name: str, array: Array, form: OutputForm, contents: list[bytes]) -> Iterator[bytes]:
    """Yield the JSON of an output; binary values go into ``contents``."""
    described: dict[str, Any] = {
        "name": name,
        "datatype": datatype_of(name, array),
        "shape": list(array.shape),
    }
    if form.binary:
        contents.append(to_raw(array))
        described["parameters"] = {BINARY_DATA_SIZE: len(contents[-1])}
    elif array.dtype == object:
        described["data"], in_base64 = to_texts(array, in_base64=form.base64)
        if in_base64:
            described["parameters"] = {CONTENT_TYPE: BASE64}
    yield orjson.dumps(described)[:-1]
    if not form.binary and array.dtype != object:
        flat = np.ascontiguousarray(array).reshape(-1)
        yield b',"data":'
        # orjson does not support bfloat16.
        yield from array_text(name, flat.astype(np.float32) if flat.dtype.kind == "V" else flat)
    yield b"}"

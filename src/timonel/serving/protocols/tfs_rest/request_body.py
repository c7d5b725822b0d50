"""Decode bodies of Predict requests to arrays. Pure.

A body is JSON unless its content type is an image or a text. JSON is row-wise (``instances``) or
columnar (``inputs``), and the response has the same form, see `response_body`. Messages match
TensorFlow Serving's, as clients match on them.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from email.message import Message
from typing import Any

import numpy as np

from timonel.serving.protocols.tfs_rest.jsontext import contains, echo, parse
from timonel.serving.protocols.tfs_rest.number_arrays import Outline, decode_outline, read_outline
from timonel.serving.protocols.tfs_rest.tensors import (
    Allocate,
    Column,
    allocate_plainly,
    display_name,
    is_b64,
    to_array,
    to_array_fast,
)
from timonel.serving.signature import STRING, Array, TensorSpec
from timonel.serving.status import StatusError, invalid_argument

Specs = Mapping[str, TensorSpec]


_UNSAID = frozenset({"text/plain", "application/octet-stream"})
"""Content types that clients such as ``fetch`` send by default, even for JSON."""
_START = 256
_UTF8 = frozenset({"utf-8", "utf8", "us-ascii"})
_CHARSETS = _UTF8 | {"ascii", "iso-8859-1", "latin-1", "utf-16", "windows-1252"}


@dataclass(frozen=True)
class Media:
    """Content type of a body that is not JSON.

    Args:
        name: The content type without its parameters.
        charset: The encoding of a text. Images and bytes are kept unchanged and count as UTF-8.
    """

    name: str
    charset: str = "utf-8"


@functools.lru_cache(256)
def media_of(content_type: str) -> Media | None:
    """Parse a content type; None for JSON and unknown types.

    Raises:
        StatusError: The charset is unknown.
    """
    name = content_type.partition(";")[0].strip().lower()
    if name.startswith("image/") or name == "application/octet-stream":
        return Media(name)
    if name != "text/plain":
        return None
    message = Message()
    message["content-type"] = content_type
    charset = str(message.get_param("charset", "utf-8")).lower()
    # Not every codec of Python: punycode takes quadratic time.
    if charset not in _CHARSETS:
        raise invalid_argument(
            f"Unknown charset {charset[:40]!r}. Use one of {', '.join(sorted(_CHARSETS))}."
        )
    return Media(name, charset)


class JsonBody:
    """A parsed request with undecoded tensors.

    Args:
        signature_name: The requested signature; empty for the default one.
        body: The text.
        outline: The request with its large arrays of numbers read; None if that gave up.
    """

    def __init__(self, signature_name: str, body: bytes, outline: Outline | None = None) -> None:
        self.signature_name = signature_name
        self.outline = outline
        self._body = body
        self._content: dict[str, Any] | None = None

    @property
    def content(self) -> dict[str, Any]:
        """The whole JSON object, parsed on first use."""
        # Not a `cached_property`: before Python 3.12, it has one lock for all instances, on which
        # the event loop would wait while another request's large body is parsed.
        if self._content is None:
            self._content = parse(self._body)
        return self._content

    @property
    def has_booleans(self) -> bool:
        """Whether true or false may occur in the text."""
        return contains(self._body, b"true") or contains(self._body, b"false")

    @property
    def by_row(self) -> bool:
        """Whether the request, and thus the response, is row-wise."""
        content = self.content if self.outline is None else self.outline.content
        return "instances" in content


class PlainBody:
    """A request that is not JSON.

    Args:
        media: The content type.
        body: The body.
    """

    signature_name = ""
    """The default signature: such a request cannot name another."""

    def __init__(self, media: Media, body: bytes) -> None:
        self.media = media
        self.body = body
        self.by_row = True
        """Whether the response is row-wise; set when the request is decoded."""


def read_request(body: bytes, media: Media | None = None) -> JsonBody | PlainBody:
    """Parse a request, as far as possible without the model.

    Args:
        body: The body.
        media: The content type; None for JSON. A JSON request labelled as text or bytes is accepted
            as JSON, too.

    Raises:
        StatusError: The body should be JSON, but is not a valid request.
    """
    if media is None:
        return parse_request(body)
    if media.name in _UNSAID and body[:_START].lstrip()[:1] == b"{":
        try:
            request = parse_request(body)
            if request.by_row or "inputs" in request.content:
                return request
        except StatusError:
            pass
    return PlainBody(media, body)


def decode_request(
    request: JsonBody | PlainBody, specs: Specs, allocate: Allocate = allocate_plainly
) -> dict[str, Array]:
    """Return a request's tensors by input name.

    Args:
        request: The parsed request.
        specs: The signature's inputs.
        allocate: Creates the arrays for large tensors.

    Raises:
        StatusError: Tensors are missing, ragged, or of the wrong type.
    """
    if isinstance(request, JsonBody):
        return decode(request, specs, allocate)
    return _single(request, specs)


def parse_request(body: bytes) -> JsonBody:
    """Parse a JSON request, as far as possible without the model.

    Raises:
        StatusError: The text is not a JSON object, or its signature name is not a string.
    """
    found = read_outline(body)
    if found is not None:
        name = found.fill(found.content.get("signature_name", ""))
        if isinstance(name, str):
            return JsonBody(name, body, found)
    request = JsonBody("", body)
    request.signature_name = signature_name(request.content)
    return request


def signature_name(content: Mapping[str, Any]) -> str:
    """Return the requested signature; empty for the default one.

    Raises:
        StatusError: The signature name is not a string.
    """
    name = content.get("signature_name", "")
    if not isinstance(name, str):
        raise invalid_argument(
            f"JSON Value: {echo(content)} not formatted correctly. "
            "'signature_name' key must be a string value."
        )
    return name


def decode(
    request: JsonBody, specs: Specs, allocate: Allocate = allocate_plainly
) -> dict[str, Array]:
    """Return a JSON request's tensors by input name.

    Args:
        request: The parsed request.
        specs: The signature's inputs; only names and dtypes are used.
        allocate: Creates the arrays for large tensors.

    Raises:
        StatusError: Tensors are missing, ragged, or of the wrong type.
    """
    if not specs:
        raise invalid_argument(
            f"Failed to get input map for signature: {request.signature_name or 'DEFAULT'}"
        )
    if request.outline is not None:
        arrays = decode_outline(request.outline, specs, allocate)
        if arrays is not None:
            return arrays
    content = request.content
    if "instances" in content:
        if "inputs" in content:
            raise invalid_argument(
                f"JSON Value: {echo(content)} Not formatted correctly expecting only one of "
                "'inputs' or 'instances' keys to exist "
            )
        return _decode_instances(request, specs)
    if "inputs" in content:
        return _decode_inputs(request, specs)
    raise invalid_argument("Missing 'inputs' or 'instances' key")


def _decode_instances(request: JsonBody, specs: Specs) -> dict[str, Array]:
    instances = request.content["instances"]
    if not isinstance(instances, list):
        raise invalid_argument(
            f"JSON Value: {echo(request.content)} Expecting 'instances' to be an list/array"
        )
    if not instances:
        raise invalid_argument(
            f"JSON Value: {echo(request.content)} No values in 'instances' array"
        )
    return _decode_instances_fast(request, instances, specs) or decode_rows(instances, specs)


def _decode_instances_fast(
    request: JsonBody, instances: list[Any], specs: Specs
) -> dict[str, Array] | None:
    """Return the tensors if all are valid and numeric; else None."""
    if request.has_booleans:
        return None
    if not isinstance(instances[0], dict):
        columns = dict.fromkeys(specs, instances) if len(specs) == 1 else {}
    else:
        try:
            columns = {name: [row[name] for row in instances] for name in specs}
        except (KeyError, TypeError):
            return None
        if any(len(row) != len(specs) for row in instances):
            return None
    arrays: dict[str, Array] = {}
    for name, column in columns.items():
        array = to_array_fast(column, specs[name].dtype)
        if array is None:
            return None
        arrays[name] = array
    return arrays


def decode_rows(instances: list[Any], specs: Specs) -> dict[str, Array]:
    """Decode row-wise tensors element by element, as the reference implementation.

    Raises:
        StatusError: An element is invalid; the message says which.
    """
    named = _is_row_object(instances[0])
    if not isinstance(instances[0], dict) and len(specs) > 1:
        raise invalid_argument(
            "instances is a plain list, but expecting list of objects as multiple input tensors "
            "required as per tensorinfo_map"
        )
    columns = {name: Column(spec.dtype) for name, spec in specs.items()}
    for index, element in enumerate(instances):
        if named:
            _add_row(columns, index, element, specs)
        else:
            _add_value(columns, index, element)
    return {name: column.to_array() for name, column in columns.items()}


def _add_row(columns: dict[str, Column], index: int, element: Any, specs: Specs) -> None:
    if not _is_row_object(element):
        raise invalid_argument(f"Expecting object but got list at item {index} of input list")
    for name, value in element.items():
        try:
            _add(columns, name, value)
        except StatusError as error:
            raise invalid_argument(
                f"Failed to process element: {index} key: {name} of 'instances' list. "
                f"Error: {error}"
            ) from error
    if element.keys() != specs.keys():
        raise invalid_argument(
            f"Failed to process element: {index} of 'instances' list. JSON object: "
            f"{echo(element)} keys must be equal to: {','.join(sorted(specs))}"
        )


def _add_value(columns: dict[str, Column], index: int, element: Any) -> None:
    if _is_row_object(element):
        raise invalid_argument(f"Expecting value/list but got object at item {index} of input list")
    (column,) = columns.values()
    try:
        column.add(element)
    except StatusError as error:
        raise invalid_argument(
            f"Failed to process element: {index} of 'instances' list. Error: {error}"
        ) from error


def _add(columns: dict[str, Column], name: str, value: Any) -> None:
    if name not in columns:
        raise invalid_argument(f"JSON object: does not have named input: {name}")
    columns[name].add(value)


def _decode_inputs(request: JsonBody, specs: Specs) -> dict[str, Array]:
    inputs = request.content["inputs"]
    if not _is_row_object(inputs):
        if len(specs) > 1:
            raise invalid_argument(
                "inputs is a plain value/list, but expecting an object as multiple input tensors "
                "required as per tensorinfo_map"
            )
        inputs = {next(iter(specs)): inputs}
    for name in specs:
        if name not in inputs:
            raise invalid_argument(f"Missing named input: {name} in 'inputs' object.")
    return {name: _column(inputs[name], spec, request) for name, spec in specs.items()}


def _column(value: Any, spec: TensorSpec, request: JsonBody) -> Array:
    array = None if request.has_booleans else to_array_fast(value, spec.dtype)
    return to_array(value, spec.dtype) if array is None else array


def _is_row_object(value: object) -> bool:
    return isinstance(value, dict) and not is_b64(value)


def _single(request: PlainBody, specs: Specs) -> dict[str, Array]:
    media, value = request.media, request.body
    name, spec = next(iter(specs.items()), ("", None))
    sizes = None if spec is None else spec.shape
    if spec is None or len(specs) > 1 or spec.dtype != STRING or len(sizes or ()) > 2:
        raise invalid_argument(
            f"expected a signature with one input of strings for a body of {media.name}, this one "
            f"takes {_described(specs)}; send JSON"
        )
    if media.charset not in _UTF8:
        value = _text(value, media).encode()
    array = np.empty((), object)
    array[()] = value
    request.by_row = sizes != ()
    return {name: array.reshape((1,) if sizes is None else (1,) * len(sizes))}


def _text(body: bytes, media: Media) -> str:
    try:
        text = body.decode(media.charset)
    except UnicodeError:
        raise invalid_argument(f"expected text in {media.charset}, got other bytes") from None
    return text.removeprefix("\ufeff")


def _described(specs: Specs) -> str:
    """Describe a signature's inputs for a message."""
    return ", ".join(f"{name} ({_type(spec)})" for name, spec in specs.items()) or "nothing"


def _type(spec: TensorSpec) -> str:
    if spec.shape is None:
        return f"{display_name(spec.dtype)} of any shape"
    sizes = ",".join("?" if size < 0 else str(size) for size in spec.shape)
    return f"{display_name(spec.dtype)} [{sizes}]"

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

from timonel.data.examples import Value, encode_example
from timonel.serving.protocols.tfs_rest.jsontext import contains, echo, parse, type_name
from timonel.serving.protocols.tfs_rest.number_arrays import Outline, decode_outline, read_outline
from timonel.serving.protocols.tfs_rest.tensors import (
    Allocate,
    Column,
    allocate_plainly,
    is_b64,
    to_array,
    to_array_fast,
    to_bytes,
)
from timonel.serving.signature import STRING, Array, TensorSpec, display_name
from timonel.serving.status import StatusError, invalid_argument

Specs = Mapping[str, TensorSpec]


_DEFAULT_TYPES = frozenset({"text/plain", "application/octet-stream"})
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
        self._outline = outline
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
        content = self.content if self._outline is None else self._outline.content
        return "instances" in content

    def arrays(self, specs: Specs, allocate: Allocate = allocate_plainly) -> dict[str, Array]:
        """Return the tensors by input name.

        Args:
            specs: The signature's inputs; only names and dtypes are used.
            allocate: Creates the arrays for large tensors.

        Raises:
            StatusError: Tensors are missing, ragged, or of the wrong type.
        """
        if not specs:
            raise invalid_argument(
                f"Failed to get input map for signature: {self.signature_name or 'DEFAULT'}"
            )
        if self._outline is not None:
            arrays = decode_outline(self._outline, specs, allocate)
            if arrays is not None:
                return arrays
        content = self.content
        if "instances" in content:
            if "inputs" in content:
                raise invalid_argument(
                    f"JSON Value: {echo(content)} Not formatted correctly expecting only one of "
                    "'inputs' or 'instances' keys to exist "
                )
            return _decode_instances(self, specs)
        if "inputs" in content:
            return _decode_inputs(self, specs)
        raise invalid_argument("Missing 'inputs' or 'instances' key")


class PlainBody:
    """A request that is not JSON.

    Args:
        media: The content type.
        body: The body.
    """

    signature_name = ""
    """The default signature: such a request cannot name another."""

    def __init__(self, media: Media, body: bytes) -> None:
        self._media = media
        self._body = body
        self.by_row = True
        """Whether the response is row-wise; set by `arrays`."""

    def arrays(self, specs: Specs, _: Allocate = allocate_plainly) -> dict[str, Array]:
        """Return the body as the only input.

        Raises:
            StatusError: The signature takes other inputs than one of strings.
        """
        media, value = self._media, self._body
        name, spec = next(iter(specs.items()), ("", None))
        sizes = None if spec is None else spec.shape
        if spec is None or len(specs) > 1 or spec.dtype != STRING or len(sizes or ()) > 2:
            raise invalid_argument(
                f"A body of {media.name} needs a signature with a single input of strings, but "
                f"this one takes {_described(specs)}. Send JSON instead."
            )
        if media.charset not in _UTF8:
            value = _text(value, media).encode()
        array = np.empty((), object)
        array[()] = value
        self.by_row = sizes != ()
        return {name: array.reshape((1,) if sizes is None else (1,) * len(sizes))}


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
    if media.name in _DEFAULT_TYPES and body[:_START].lstrip()[:1] == b"{":
        try:
            request = parse_request(body)
            if request.by_row or "inputs" in request.content:
                return request
        except StatusError:
            pass
    return PlainBody(media, body)


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
    if not named and len(specs) > 1:
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
            if name not in columns:
                raise invalid_argument(f"JSON object: does not have named input: {name}")
            columns[name].add(value)
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


def _text(body: bytes, media: Media) -> str:
    try:
        text = body.decode(media.charset)
    except UnicodeError:
        raise invalid_argument(f"The body is not valid {media.charset}.") from None
    return text.removeprefix("\ufeff")


def _described(specs: Specs) -> str:
    """Describe a signature's inputs for a message."""
    return ", ".join(f"{name} ({_type(spec)})" for name, spec in specs.items()) or "nothing"


def _type(spec: TensorSpec) -> str:
    if spec.shape is None:
        return f"{display_name(spec.dtype)} of any shape"
    sizes = ",".join("?" if size < 0 else str(size) for size in spec.shape)
    return f"{display_name(spec.dtype)} [{sizes}]"


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

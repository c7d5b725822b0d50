"""Predict requests over REST.

A body is JSON unless its content type is an image or a text. JSON is row-wise (``instances``) or
columnar (``inputs``), and the response has the same form. Messages match TensorFlow Serving's, as
clients match on them.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from timonel.serving.asgi import Response
from timonel.serving.codec.jsontext import echo
from timonel.serving.codec.number_arrays import (
    Outline,
    Specs,
    decode_outline,
    is_row,
    outline_of,
)
from timonel.serving.codec.tensors import Column, to_array
from timonel.serving.codec.writer import encode
from timonel.serving.futures import AT_ONCE_BYTES
from timonel.serving.inference.flow import Call, Codec, Outputs, SignatureRun
from timonel.serving.inference.signature_check import check_method
from timonel.serving.manager.catalogue import ModelSpec
from timonel.serving.protocols.http import TIMED_OUT, unzip
from timonel.serving.settings.server import RestSettings
from timonel.serving.signature import DEFAULT_SIGNATURE, STRING, Array, string_array
from timonel.serving.status import StatusError, invalid_argument

_DEFAULT_TYPES = frozenset({"text/plain", "application/octet-stream"})
"""Content types that clients such as ``fetch`` send by default, even for JSON."""
_START = 256
_IMAGES = (b"\xff\xd8\xff", b"\x89PNG\r\n", b"GIF8", b"RIFF", b"BM")
"""First bytes of JPEG, PNG, GIF, WebP and BMP files."""
_UTF8 = frozenset({"utf-8", "utf8", "us-ascii"})
_CHARSET = re.compile(r";\s*charset\s*=\s*\"?([^\";]*)", re.IGNORECASE)


Missing = Mapping[str, float | str]
NONE_MISSING: Missing = MappingProxyType({})


class RestOptions(NamedTuple):
    """Settings of the REST API, and the largest body in bytes."""

    settings: RestSettings
    max_body: int | None = None


class ComputeCodec(Codec[Response]):
    """A request of TensorFlow Serving's REST API that runs a model."""

    entrypoint = "REST"
    overdue = TIMED_OUT

    def __init__(
        self,
        rest: RestOptions,
        verb: str,
        spec: ModelSpec,
        body: bytes,
        media: str,
        *,
        zipped: bool = False,
    ) -> None:
        self.api = verb
        self.model = spec.name
        self.size = len(body) + AT_ONCE_BYTES if zipped else len(body)
        self._rest = rest
        self._spec = spec
        self._body = body
        self._media = media
        self._zipped = zipped

    def unpacked(self) -> bytes:
        """Return the decompressed body."""
        if not self._zipped:
            return self._body
        return unzip(self._body, self._rest.max_body if self._rest.settings.extensions else None)


class PredictCodec(ComputeCodec):
    """A Predict request."""

    _by_row: bool

    def prepare(self, acquire: Callable[[ModelSpec], Call]) -> Sequence[SignatureRun]:
        """Decode the body by the signature that it names."""
        rest = self._rest
        media = media_of(self._media) if rest.settings.extensions else None
        request = read_request(self.unpacked(), media)
        call = acquire(self._spec)
        signature = call.find(request.signature_name)
        if signature is None:
            raise invalid_argument(
                f'Serving signature name: "{request.signature_name or DEFAULT_SIGNATURE}" not '
                "found in signature def"
            )
        missing = call.missing if signature.name == DEFAULT_SIGNATURE else NONE_MISSING
        arrays = request.arrays(signature.inputs, missing)
        if rest.settings.check_method_names:
            check_method(signature)
        self._by_row = request.by_row
        return (SignatureRun(signature, arrays),)

    def encode(self, _: Call, outputs: Sequence[Outputs]) -> Response:
        """Encode the outputs as JSON in the form of the request."""
        return Response(200, encode(outputs[0], by_row=self._by_row))


@functools.lru_cache(256)
def media_of(content_type: str) -> str | None:
    """Return the content type of a body that is not JSON; None for JSON and unknown types."""
    name = content_type.partition(";")[0].strip().lower()
    if name == "text/plain":
        charset = _CHARSET.search(content_type)
        if charset is not None and charset[1].lower() not in _UTF8:
            raise invalid_argument(f"Unknown charset {charset[1]:.40}. Send text in UTF-8.")
    elif not name.startswith("image/") and name != "application/octet-stream":
        return None
    return name


class JsonBody:
    """A parsed request with undecoded tensors."""

    def __init__(self, signature_name: str, outline: Outline) -> None:
        self.signature_name = signature_name
        self.by_row = "instances" in outline.content
        """Whether the request, and thus the response, is row-wise."""
        self._outline = outline

    @property
    def is_tensors(self) -> bool:
        """Whether the request has any tensors."""
        return self.by_row or "inputs" in self._outline.content

    def arrays(self, specs: Specs, missing: Missing = NONE_MISSING) -> dict[str, Array]:
        """Return the tensors by input name, with ``missing`` values in place of null."""
        if not specs:
            raise invalid_argument(
                f"Failed to get input map for signature: {self.signature_name or 'DEFAULT'}"
            )
        arrays = decode_outline(self._outline, specs)
        if arrays is None:
            content = self._outline.whole().content
            arrays = decode_exactly(_filled(content, specs, missing) if missing else content, specs)
        return arrays


class PlainBody:
    """A request that is not JSON."""

    signature_name = ""
    """The default signature: such a request cannot name another."""

    def __init__(self, media: str, body: bytes) -> None:
        self._media = media
        self._body = body
        self.by_row = True
        """Whether the response is row-wise; set by `arrays`."""

    def arrays(self, specs: Specs, _: Missing = NONE_MISSING) -> dict[str, Array]:
        """Return the body as the only input."""
        name, spec = next(iter(specs.items()), ("", None))
        sizes = None if spec is None else spec.shape
        if spec is None or len(specs) > 1 or spec.dtype != STRING or len(sizes or ()) > 2:
            raise invalid_argument(
                f"A body of {self._media} needs a signature with a single input of strings, but "
                f"this one takes {_described(specs)}. Send JSON instead."
            )
        self.by_row = sizes != ()
        return {
            name: string_array([self._body]).reshape((1,) if sizes is None else (1,) * len(sizes))
        }


def read_request(body: bytes, media: str | None = None) -> JsonBody | PlainBody:
    """Parse a request, as far as possible without the model."""
    if media is None:
        try:
            return parse_request(body)
        except StatusError as error:
            if body.startswith(_IMAGES):
                raise invalid_argument(
                    f"{error.message}. The body looks like an image: send it with the header "
                    "'Content-Type: image/jpeg', or in Base64 as JSON."
                ) from None
            raise
    if media in _DEFAULT_TYPES and body[:_START].lstrip()[:1] == b"{":
        try:
            request = parse_request(body)
            if request.is_tensors:
                return request
        except StatusError:
            pass
    return PlainBody(media, body)


def parse_request(body: bytes) -> JsonBody:
    """Parse a JSON request, as far as possible without the model."""
    outline = outline_of(body)
    name = outline.content.get("signature_name", "")
    if outline.arrays:
        name = outline.fill(name)
    if not isinstance(name, str):
        name = signature_name(outline.whole().content)
    return JsonBody(name, outline)


def signature_name(content: Mapping[str, Any]) -> str:
    """Return the requested signature; empty for the default one."""
    name = content.get("signature_name", "")
    if not isinstance(name, str):
        raise invalid_argument(
            f"JSON Value: {echo(content)} not formatted correctly. "
            "'signature_name' key must be a string value."
        )
    return name


def decode_exactly(content: Mapping[str, Any], specs: Specs) -> dict[str, Array]:
    """Decode the tensors element by element, as the reference implementation."""
    if "instances" in content:
        if "inputs" in content:
            raise invalid_argument(
                f"JSON Value: {echo(content)} Not formatted correctly expecting only one of "
                "'inputs' or 'instances' keys to exist "
            )
        instances = content["instances"]
        if not isinstance(instances, list):
            raise invalid_argument(
                f"JSON Value: {echo(content)} Expecting 'instances' to be an list/array"
            )
        if not instances:
            raise invalid_argument(f"JSON Value: {echo(content)} No values in 'instances' array")
        return decode_rows(instances, specs)
    if "inputs" in content:
        return _decode_inputs(content["inputs"], specs)
    raise invalid_argument("Missing 'inputs' or 'instances' key")


def decode_rows(instances: list[Any], specs: Specs) -> dict[str, Array]:
    """Decode row-wise tensors."""
    named = is_row(instances[0])
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
    if not is_row(element):
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
    if is_row(element):
        raise invalid_argument(f"Expecting value/list but got object at item {index} of input list")
    (column,) = columns.values()
    try:
        column.add(element)
    except StatusError as error:
        raise invalid_argument(
            f"Failed to process element: {index} of 'instances' list. Error: {error}"
        ) from error


def _decode_inputs(inputs: Any, specs: Specs) -> dict[str, Array]:
    if not is_row(inputs):
        if len(specs) > 1:
            raise invalid_argument(
                "inputs is a plain value/list, but expecting an object as multiple input tensors "
                "required as per tensorinfo_map"
            )
        inputs = {next(iter(specs)): inputs}
    for name in specs:
        if name not in inputs:
            raise invalid_argument(f"Missing named input: {name} in 'inputs' object.")
    return {name: to_array(inputs[name], spec.dtype) for name, spec in specs.items()}


def _filled(content: Mapping[str, Any], specs: Specs, missing: Missing) -> Mapping[str, Any]:
    """Return a request with values in place of null, for the inputs that may be missing."""

    def filled(value: Any, name: str) -> Any:
        if isinstance(value, list):
            return [filled(each, name) for each in value]
        return missing.get(name) if value is None else value

    def row(value: Any) -> Any:
        if is_row(value):
            return {name: filled(each, name) for name, each in value.items()}
        return filled(value, next(iter(specs))) if len(specs) == 1 else value

    found = dict(content)
    if isinstance(found.get("instances"), list):
        found["instances"] = [row(each) for each in found["instances"]]
    if "inputs" in found:
        found["inputs"] = row(found["inputs"])
    return found


def _described(specs: Specs) -> str:
    """Describe a signature's inputs for a message."""
    return ", ".join(f"{name} ({spec.title})" for name, spec in specs.items()) or "nothing"

"""Bodies of Predict requests that are no JSON: an image or a text as it is. Pure functions.

What a body is, is said by its content type; everything else is JSON, whatever it calls itself.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from email.message import Message

import numpy as np

from timonel.serving.rest.codec import RequestBody, decode, parse_request
from timonel.serving.rest.tensors import Allocate, allocate_plainly, display_name
from timonel.serving.runtimes.base import STRING, Array, TensorSpec
from timonel.serving.status import StatusError, invalid_argument

Specs = Mapping[str, TensorSpec]

_UNSAID = frozenset({"text/plain", "application/octet-stream"})
"""What clients call JSON that do not say what they send, such as a browser's ``fetch``."""
_START = 256
_UTF8 = frozenset({"utf-8", "utf8", "us-ascii"})
_CHARSETS = _UTF8 | {"ascii", "iso-8859-1", "latin-1", "utf-16", "windows-1252"}


@dataclass(frozen=True)
class Media:
    """What a body is.

    Args:
        name: The content type without its parameters.
        charset: The encoding of a text; bytes count as UTF-8, as they stay as they are.
    """

    name: str
    charset: str = "utf-8"


@functools.lru_cache(256)
def media_of(content_type: str) -> Media | None:
    """Return what a content type says of a body; none for JSON, which is what is not known too.

    Raises:
        StatusError: It has a parameter that makes no sense.
    """
    name = content_type.partition(";")[0].strip().lower()
    if name.startswith("image/") or name == "application/octet-stream":
        return Media(name)
    if name != "text/plain":
        return None
    message = Message()
    message["content-type"] = content_type
    charset = str(message.get_param("charset", "utf-8")).lower()
    # Not whatever Python decodes: punycode takes a time that grows with the square of the length.
    if charset not in _CHARSETS:
        raise invalid_argument(
            f"Unknown charset {charset[:40]!r}. Use one of {', '.join(sorted(_CHARSETS))}."
        )
    return Media(name, charset)


class PlainBody:
    """A request that is no JSON.

    Args:
        media: What it is.
        body: The body.
    """

    signature_name = ""
    """The default one: such a request has no place to name another."""

    def __init__(self, media: Media, body: bytes) -> None:
        self.media = media
        self.body = body
        self.by_row = True
        """Whether the response is row-wise; known once it is decoded."""


def read_request(body: bytes, media: Media | None = None) -> RequestBody | PlainBody:
    """Parse a request as far as it goes without knowing the model.

    Args:
        body: The body.
        media: What it is; none for JSON. What is a request in JSON counts as that too where it is
            called a text or bytes.

    Raises:
        StatusError: It ought to be JSON, and is not.
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
    request: RequestBody | PlainBody, specs: Specs, allocate: Allocate = allocate_plainly
) -> dict[str, Array]:
    """Return a request's tensors by input name.

    Args:
        request: The parsed request.
        specs: The signature's inputs.
        allocate: Makes the arrays that large tensors are written into.

    Raises:
        StatusError: The tensors are not there, ragged, or of the wrong type.
    """
    if isinstance(request, RequestBody):
        return decode(request, specs, allocate)
    return _single(request, specs)


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
    """Return a signature's inputs in words."""
    return ", ".join(f"{name} ({_type(spec)})" for name, spec in specs.items()) or "nothing"


def _type(spec: TensorSpec) -> str:
    if spec.shape is None:
        return f"{display_name(spec.dtype)} of any shape"
    sizes = ",".join("?" if size < 0 else str(size) for size in spec.shape)
    return f"{display_name(spec.dtype)} [{sizes}]"

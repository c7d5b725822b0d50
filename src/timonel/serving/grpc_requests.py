"""Parse gRPC requests, limit their fields, and reject calls.

Protobuf's parser holds the GIL and creates an object per message and repeated value: 100 MiB of
empty dimensions would take seconds and gigabytes. The fields are therefore counted first, without
reading the tensors' contents.
"""

from __future__ import annotations

import functools
from typing import Any, Final

import grpc
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from timonel.serving.futures import AT_ONCE_BYTES
from timonel.serving.settings.server import NOT_STARTED_HEADER
from timonel.serving.status import Code, NotStartedError, StatusError, invalid_argument
from timonel.wire import read_varint

MAX_FIELDS: Final = 500_000
"""Limit on fields per request, including nested ones.

Every `_PACKED_BYTES` bytes of a packed varint field count as one field.
"""
_PACKED_BYTES: Final = 4
_MESSAGE_LIMIT: Final = 1024
_SUFFIX: Final = "...TRUNCATED"
_VARINT, _FIXED64, _LENGTH, _START_GROUP, _END_GROUP, _FIXED32 = range(6)
_FIXED_SIZES: Final = {_FIXED64: 8, _FIXED32: 4, _START_GROUP: 0, _END_GROUP: 0}
_VARINT_TYPES: Final = frozenset(
    {
        FieldDescriptor.TYPE_BOOL,
        FieldDescriptor.TYPE_ENUM,
        FieldDescriptor.TYPE_INT32,
        FieldDescriptor.TYPE_INT64,
        FieldDescriptor.TYPE_SINT32,
        FieldDescriptor.TYPE_SINT64,
        FieldDescriptor.TYPE_UINT32,
        FieldDescriptor.TYPE_UINT64,
    }
)


def parse(raw: bytes, request_type: Any) -> Any:
    """Return the message in a request.

    Not as gRPC's deserializer, which runs in the event loop, and logs a traceback if it raises.
    """
    if len(raw) > AT_ONCE_BYTES and has_more_fields(raw, request_type.DESCRIPTOR):
        raise invalid_argument(
            f"The request has more than {MAX_FIELDS} fields. Send tensors as tensor_content or "
            "raw_input_contents, or fewer rows in a request."
        )
    try:
        return request_type.FromString(raw)
    except DecodeError:
        raise malformed() from None


def has_more_fields(raw: bytes, descriptor: Descriptor, limit: int = MAX_FIELDS) -> bool:
    """Whether a serialized message has more fields than ``limit``, as far as it can be read."""
    count = 0
    parts = [(0, len(raw), descriptor)]
    try:
        while parts:
            at, end, message = parts.pop()
            messages, varints = _fields(message)
            while at < end:
                count += 1
                if count > limit:
                    return True
                tag, at = read_varint(raw, at)
                kind = tag & 7
                if kind == _VARINT:
                    _, at = read_varint(raw, at)
                elif kind == _LENGTH:
                    length, at = read_varint(raw, at)
                    number = tag >> 3
                    if number in varints:
                        count += length // _PACKED_BYTES
                    elif length and number in messages:
                        parts.append((at, min(at + length, end), messages[number]))
                    at += length
                else:
                    at += _FIXED_SIZES[kind]
    except (IndexError, KeyError, ValueError):
        pass
    return count > limit


@functools.cache
def _fields(descriptor: Descriptor) -> tuple[dict[int, Descriptor], frozenset[int]]:
    """Return the types of a message type's nested messages, and its varint fields, by number."""
    fields = descriptor.fields
    messages = {each.number: each.message_type for each in fields if each.message_type is not None}
    return messages, frozenset(each.number for each in fields if each.type in _VARINT_TYPES)


def malformed() -> StatusError:
    """Return the status of a request that is not a valid message."""
    return StatusError(Code.INTERNAL, "Exception deserializing request!")


_CODES = {code.value[0]: code for code in grpc.StatusCode}


def _cut(message: str) -> str:
    """Truncate an error message to `_MESSAGE_LIMIT` bytes, as header size is limited."""
    encoded = message.encode(errors="backslashreplace")
    if len(encoded) <= _MESSAGE_LIMIT:
        return encoded.decode()
    return encoded[:_MESSAGE_LIMIT].decode(errors="ignore") + _SUFFIX


async def refuse(context: Any, error: StatusError) -> None:
    """Set the error status of a call.

    The handler must then return at once, with any response. ``context.abort`` would raise an error
    that the context keeps. Its traceback refers to the handler's frames, so to the request and the
    context: a cycle that keeps the whole request in memory until the next full garbage collection.
    """
    if isinstance(error, NotStartedError):
        # The gateway decides by the header frame, which comes before the status.
        await context.send_initial_metadata(((NOT_STARTED_HEADER, "1"),))
        # The first follows REST; gRPC's own retries use the second.
        context.set_trailing_metadata((("retry-after", "1"), ("grpc-retry-pushback-ms", "1000")))
    context.set_code(_CODES[error.code.value])
    context.set_details(_cut(error.message))

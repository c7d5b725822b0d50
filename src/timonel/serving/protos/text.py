"""Read text protos. Messages are TensorFlow Serving's, as start scripts match on them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from google.protobuf import text_format

from timonel.serving.status import Code, StatusError, invalid_argument, not_found


class TextProtoError(StatusError):
    """A text that is not a text proto of the expected message."""

    def __init__(self, path: str, message_name: str, reason: str) -> None:
        super().__init__(Code.INVALID_ARGUMENT, _invalid(path))
        self.diagnosis = f"Error parsing text-format {message_name}: {reason}"


def read_text(path: str) -> str:
    """Return a file's text."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise not_found(f"{path}; No such file or directory") from error
    except OSError as error:
        raise StatusError(Code.UNKNOWN, f"{path}; {error}") from error
    except UnicodeDecodeError as error:
        raise invalid_argument(_invalid(path)) from error


def parse_text_proto(text: str, message: Any, path: str) -> Any:
    """Parse a text proto into ``message`` and return it."""
    try:
        return text_format.Parse(text, message)
    except text_format.ParseError as error:
        reason = re.sub(r"^(\d+:\d+) :", r"\1:", str(error))
        raise TextProtoError(path, message.DESCRIPTOR.full_name, reason) from error


def _invalid(path: str) -> str:
    return f"Invalid protobuf file: '{path}'"

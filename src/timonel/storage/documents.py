"""JSON documents with a kind and a format number.

Every file timonel writes for itself starts with ``"kind"`` and ``"format"``. A reader accepts its
own format and the previous one. ``timonel migrate`` upgrades older formats; a newer format is
rejected with an error that says to upgrade timonel.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from timonel.errors import CorruptError, FormatError, InputError, NotFoundError
from timonel.storage.atomic import write_json

FORMATS: Mapping[str, int] = {
    "workspace": 1,
    "dataset": 1,
    "dataset-reference": 1,
    "job": 1,
    "job-status": 1,
    "run": 1,
    "train": 1,
    "export": 1,
    "model-version": 1,
    "runtime-choice": 1,
    "evaluations": 1,
    "checkpoint": 2,
    "server": 1,
    "mirror": 1,
    "cache-entry": 1,
    "model-cache-entry": 1,
    "bucket-listing": 1,
    "api-keys": 1,
}
"""Format number that this release writes for each kind of document."""


def write_document(path: Path, kind: str, body: Mapping[str, Any]) -> None:
    """Write ``body`` to ``path`` as a document in the current format, atomically."""
    write_json(path, document(kind, body))


def document(kind: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``body`` with its kind and format number in front.

    Raises:
        ValueError: The body has a ``kind`` field with another value.
    """
    if body.get("kind", kind) != kind:
        raise ValueError(f"expected no 'kind' in the body of a {kind} document: {body['kind']!r}")
    rest = {key: value for key, value in body.items() if key not in {"kind", "format"}}
    return {"kind": kind, "format": FORMATS[kind], **rest}


def read_document(path: Path, kind: str) -> dict[str, Any]:
    """Read a document of ``kind``.

    Raises:
        NotFoundError: The file does not exist.
        InputError: The file cannot be read.
        CorruptError: The file is not a JSON object of that kind.
        FormatError: The format is newer than this release, or older than the previous one.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        raise NotFoundError(f"expected a {kind} document at {path}, found none") from None
    except OSError as error:
        raise InputError(f"expected to read {path}, got {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise CorruptError(f"expected JSON in {path}, got {error}") from error
    return parse_document(text, kind, str(path))


def parse_document(text: str, kind: str, origin: str) -> dict[str, Any]:
    """Parse a document of ``kind``; ``origin`` names its source in errors."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise CorruptError(f"expected JSON in {origin}, got {error}") from error
    if not isinstance(value, dict) or value.get("kind") != kind:
        found = value.get("kind") if isinstance(value, dict) else type(value).__name__
        raise CorruptError(f"expected a {kind} document in {origin}, got {found}")
    check_format(kind, value.get("format"), origin)
    return value


def check_format(kind: str, found: object, origin: str) -> None:
    """Check that this release can read a format number.

    Raises:
        CorruptError: ``found`` is not a positive integer.
        FormatError: The format is newer than this release, or older than the previous one.
    """
    known = FORMATS[kind]
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise CorruptError(f"expected a format number in {origin}, got {found!r}")
    if found > known:
        raise FormatError(
            f"expected {kind} format {known} or older in {origin}, got {found}",
            hint="it was written by a newer timonel: upgrade timonel",
        )
    if found < known - 1:
        raise FormatError(
            f"expected {kind} format {known - 1} or newer in {origin}, got {found}",
            hint="run 'timonel migrate' once",
        )

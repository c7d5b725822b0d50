"""JSON documents with a kind and a format number.

Every file timonel writes for itself starts with ``"kind"`` and ``"format"``. A reader accepts its
own format; another one is rejected with an error that names the cure.
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
    "shard-plan": 1,
    "shard-outcome": 1,
    "job": 1,
    "job-status": 1,
    "run": 1,
    "train": 1,
    "export": 1,
    "architecture": 1,
    "model-version": 1,
    "model-alias": 1,
    "deletion": 1,
    "runtime-choice": 1,
    "conversion-report": 1,
    "evaluations": 1,
    "checkpoint": 5,
    "server": 1,
    "service": 1,
    "service-status": 1,
    "mirror": 1,
    "model-cache-entry": 1,
    "bucket-listing": 1,
    "api-keys": 2,
    "study": 1,
    "job-resume": 1,
    "study-controller": 1,
    "endpoint-revision": 1,
    "endpoint-status": 1,
    "endpoint-access": 1,
    "endpoints-page": 1,
    "rollout": 1,
    "rollout-state": 1,
    "autoscaler": 1,
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
        raise ValueError(f"expected the kind {kind!r} in the body, got {body['kind']!r}")
    rest = {key: value for key, value in body.items() if key not in {"kind", "format"}}
    return {"kind": kind, "format": FORMATS[kind], **rest}


def read_document(path: Path, kind: str) -> dict[str, Any]:
    """Read a document of ``kind``.

    Raises:
        NotFoundError: The file does not exist.
        InputError: The file cannot be read.
        CorruptError: The file is not a JSON object of that kind.
        FormatError: Another release wrote it.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        raise NotFoundError(f"no {kind} document at {path}") from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise CorruptError(f"{path} is not valid JSON: {error}") from error
    return parse_document(text, kind, str(path))


def parse_document(text: str, kind: str, origin: str) -> dict[str, Any]:
    """Parse a document of ``kind``; ``origin`` names its source in errors."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CorruptError(f"{origin} is not valid JSON: {error}") from error
    if not isinstance(value, dict) or value.get("kind") != kind:
        is_object = isinstance(value, dict)
        found = f"its kind is {value.get('kind')}" if is_object else "it is not a JSON object"
        raise CorruptError(f"{origin} is not a {kind} document: {found}")
    check_format(kind, value.get("format"), origin)
    return value


def check_format(kind: str, found: object, origin: str) -> None:
    """Check that this release can read a format number."""
    known = FORMATS[kind]
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise CorruptError(f"{origin} has no valid format number: {found!r}")
    if found != known:
        raise FormatError(
            f"{origin} has {kind} format {found}, this release reads {known}",
            hint="a newer timonel wrote it: upgrade timonel"
            if found > known
            else "an earlier timonel wrote it: start anew",
        )

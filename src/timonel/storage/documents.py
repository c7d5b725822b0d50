"""JSON documents with a kind and a format number, and their migration.

Every file timonel writes for itself starts with ``"kind"`` and ``"format"``. A reader accepts its
own format and the previous one. ``timonel migrate`` upgrades older formats; a newer format is
rejected with an error that says to upgrade timonel.

A migration step takes a document's body in one format and returns it in the next. Steps are pure
and are never removed, so that a workspace of any age can be upgraded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from timonel.errors import CorruptError, FormatError, InputError, NotFoundError
from timonel.storage.atomic import ASIDE_PREFIX, write_json
from timonel.storage.locks import exclusive

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
    "checkpoint": 3,
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
        FormatError: The format is newer than this release, or older than the previous one.
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
    """Check that this release can read a format number.

    Raises:
        CorruptError: ``found`` is not a positive integer.
        FormatError: The format is newer than this release, or older than the previous one.
    """
    known = FORMATS[kind]
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise CorruptError(f"{origin} has no valid format number: {found!r}")
    if found > known:
        raise _too_new(kind, known, found, origin)
    if found < known - 1:
        raise FormatError(
            f"{origin} has {kind} format {found}, this release reads {known - 1} or newer",
            hint="run 'timonel migrate' once",
        )


Step = Callable[[dict[str, Any]], dict[str, Any]]


def _kept(body: dict[str, Any]) -> dict[str, Any]:
    """Keep the body: no job resumes from an older checkpoint, as it lacks state."""
    return body


def _api_keys_1(body: dict[str, Any]) -> dict[str, Any]:
    """Replace permissions by rights; expire keys for single models, which rights cannot express."""
    keys = []
    for key in body["keys"]:
        known = {each.partition(":")[0] for each in key["permissions"] if each.endswith(":*")}
        actions = {action for each in known for action in each.split(",")}
        kept = {name: value for name, value in key.items() if name != "permissions"}
        right = "admin" if "admin" in actions else "use"
        keys.append({**kept, "right": right} | ({} if "predict" in actions else {"expires": 0.0}))
    return {**body, "keys": keys}


STEPS: Mapping[tuple[str, int], Step] = {
    ("checkpoint", 1): _kept,
    ("checkpoint", 2): _kept,
    ("api-keys", 1): _api_keys_1,
}
"""Step from each (kind, format) to the next format."""

_MARKER = "FORMAT"


@dataclass(frozen=True)
class Migrated:
    """Result of upgrading one document."""

    path: Path
    kind: str
    from_format: int
    to_format: int


def migrate_workspace(
    root: Path,
    *,
    steps: Mapping[tuple[str, int], Step] = STEPS,
    formats: Mapping[str, int] = FORMATS,
) -> list[Migrated]:
    """Upgrade every document of a workspace; return the changed ones.

    All documents are read and upgraded in memory before the first is written, so that one that
    cannot be upgraded leaves the workspace unchanged. The workspace's own document is written
    last, so that an interrupted migration can be resumed.

    Args:
        root: The workspace's folder.
        steps: The steps to use.
        formats: The current format of each kind.

    Raises:
        FormatError: A document has a newer format, or a step is missing.
        CorruptError: The workspace's own document cannot be read.
    """
    with exclusive(root / "migrate.lock"):
        upgraded = [
            (Migrated(path, body["kind"], body["format"], formats[body["kind"]]), new)
            for path, body in _documents(root, formats)
            if (new := upgrade(body, str(path), steps=steps, formats=formats)) != body
        ]
        for migrated, body in upgraded:
            write_json(migrated.path, body)
    return [migrated for migrated, _ in upgraded]


def upgrade(
    body: Mapping[str, Any],
    origin: str,
    *,
    steps: Mapping[tuple[str, int], Step] = STEPS,
    formats: Mapping[str, int] = FORMATS,
) -> dict[str, Any]:
    """Return a document's body in the current format of its kind.

    Raises:
        FormatError: The document has a newer format, or a step is missing.
    """
    kind, number = body["kind"], body["format"]
    if number > formats[kind]:
        raise _too_new(kind, formats[kind], number, origin)
    upgraded = dict(body)
    for step_from in range(number, formats[kind]):
        if (kind, step_from) not in steps:
            raise FormatError(f"cannot upgrade {origin}: no step from {kind} format {step_from}")
        rest = steps[kind, step_from](upgraded)
        upgraded = {**rest, "kind": kind, "format": step_from + 1}
    return upgraded


def _too_new(kind: str, known: int, found: int, origin: str) -> FormatError:
    return FormatError(
        f"{origin} has {kind} format {found}, this release reads {known} or older",
        hint="a newer timonel wrote it: upgrade timonel",
    )


def _documents(root: Path, formats: Mapping[str, int]) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield every document below ``root``, the workspace's own document last."""
    for path in sorted(root.rglob("*.json")):
        if any(part.startswith(ASIDE_PREFIX) for part in path.relative_to(root).parts):
            continue
        body = _document(path, formats)
        if body is not None:
            yield path, body
    marker = _document(root / _MARKER, formats)
    if marker is None:
        raise CorruptError(f"no workspace document at {root / _MARKER}")
    yield root / _MARKER, marker


def _document(path: Path, formats: Mapping[str, int]) -> dict[str, Any] | None:
    """Return the document at ``path``, or None if it is not one."""
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    is_document = isinstance(body, dict) and body.get("kind") in formats
    number = body.get("format") if is_document else None
    is_number = isinstance(number, int) and not isinstance(number, bool) and number >= 1
    return body if is_number else None

"""Upgrade documents of older formats: ``timonel migrate``.

A step takes a document's body in one format and returns it in the next. Steps are pure and are
never removed, so that a workspace of any age can be upgraded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from timonel.errors import CorruptError, FormatError
from timonel.storage.atomic import ASIDE_PREFIX, write_json
from timonel.storage.documents import FORMATS
from timonel.storage.locks import exclusive

Step = Callable[[dict[str, Any]], dict[str, Any]]


def _checkpoint_1(body: dict[str, Any]) -> dict[str, Any]:
    """Keep the body: format 2 reads its array file by ``dtypes``."""
    return body


STEPS: Mapping[tuple[str, int], Step] = {("checkpoint", 1): _checkpoint_1}
"""Step from each (kind, format) to the next format."""

_MARKER = "FORMAT"
# Unreadable cache entries are created again.
_LEFT_OUT = "cache"


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
        lifted = [
            (Migrated(path, body["kind"], body["format"], formats[body["kind"]]), new)
            for path, body in _documents(root, formats)
            if (new := lift(body, str(path), steps=steps, formats=formats)) != body
        ]
        for migrated, body in lifted:
            write_json(migrated.path, body)
    return [migrated for migrated, _ in lifted]


def lift(
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
        raise FormatError(
            f"expected {kind} format {formats[kind]} or older in {origin}, got {number}",
            hint="it was written by a newer timonel: upgrade timonel",
        )
    lifted = dict(body)
    for step_from in range(number, formats[kind]):
        if (kind, step_from) not in steps:
            raise FormatError(
                f"expected to lift {origin} from {kind} format {step_from}, but no step does"
            )
        rest = steps[kind, step_from](lifted)
        lifted = {**rest, "kind": kind, "format": step_from + 1}
    return lifted


def _documents(root: Path, formats: Mapping[str, int]) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield every document below ``root``, the workspace's own document last."""
    for path in sorted(root.rglob("*.json")):
        parts = path.relative_to(root).parts
        if parts[0] == _LEFT_OUT or any(part.startswith(ASIDE_PREFIX) for part in parts):
            continue
        body = _document(path, formats)
        if body is not None:
            yield path, body
    marker = _document(root / _MARKER, formats)
    if marker is None:
        raise CorruptError(f"expected a workspace document at {root / _MARKER}, found none")
    yield root / _MARKER, marker


def _document(path: Path, formats: Mapping[str, int]) -> dict[str, Any] | None:
    """Return the document at ``path``, or None if it is not one."""
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    is_document = isinstance(body, dict) and body.get("kind") in formats
    number = body.get("format") if is_document else None
    is_number = isinstance(number, int) and not isinstance(number, bool) and number >= 1
    return body if is_number else None

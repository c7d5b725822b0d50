"""Lifting documents of older formats: ``timonel migrate``.

A lift takes the body of a document of format N and returns that of format N + 1. A release that
raises a format number adds its lift here, and a document of the old format to the tests.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from timonel.storage.atomic import ASIDE_PREFIX, write_json
from timonel.storage.documents import FORMATS

Lift = Callable[[dict[str, Any]], dict[str, Any]]

LIFTS: Mapping[tuple[str, int], Lift] = {}
"""The lifts there are, by kind and the format they start from. Every kind is at its first."""


@dataclass
class Report:
    """What a migration did."""

    current: int = 0
    lifted: list[Path] = field(default_factory=list)
    refused: list[tuple[Path, str]] = field(default_factory=list)


def migrate(
    root: Path,
    *,
    lifts: Mapping[tuple[str, int], Lift] = LIFTS,
    formats: Mapping[str, int] = FORMATS,
) -> Report:
    """Lift every document below ``root`` to its present format, each atomically.

    Documents that are newer, or of a kind that is not known, are left and named. Running it again
    after a crash goes on where it stopped.
    """
    report = Report()
    for path, document in _documents(root):
        kind, found = document["kind"], document["format"]
        wanted = formats.get(kind)
        if wanted is None:
            report.refused.append((path, f"unknown kind {kind!r}"))
        elif found == wanted:
            report.current += 1
        elif found > wanted:
            report.refused.append((path, f"format {found} is of a newer timonel: upgrade timonel"))
        else:
            _lift(path, document, wanted, lifts, report)
    return report


def _lift(
    path: Path,
    document: dict[str, Any],
    wanted: int,
    lifts: Mapping[tuple[str, int], Lift],
    report: Report,
) -> None:
    kind = document["kind"]
    for number in range(document["format"], wanted):
        lift = lifts.get((kind, number))
        if lift is None:
            reason = f"no way from {kind} format {number}: go through an older timonel first"
            report.refused.append((path, reason))
            return
        document = {**lift(document), "kind": kind, "format": number + 1}
    write_json(path, document)
    report.lifted.append(path)


def _documents(root: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the documents of a workspace; other JSON files, of users and jobs, are passed over."""
    for path in sorted([root / "FORMAT", *root.rglob("*.json")]):
        if any(part.startswith(ASIDE_PREFIX) for part in path.relative_to(root).parts):
            continue
        try:
            value = json.loads(path.read_text())
        except (OSError, ValueError):
            continue
        if _is_document(value):
            yield path, value


def _is_document(value: object) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("kind"), str)
        and isinstance(value.get("format"), int)
    )

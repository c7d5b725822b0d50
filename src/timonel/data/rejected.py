"""Unusable records: their limit, and the file that lists them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from timonel.data.manifest import Rejected, SideFile
from timonel.errors import CorruptError, DataError, SpecError

REJECTED_NAME = "rejected.jsonl"
DEFAULT_LIMIT = 0.01


def check_limit(limit: float) -> float:
    """Validate the greatest fraction of unusable records."""
    if not 0 <= limit <= 1:
        raise SpecError(
            f"expected a fraction of rejected records from 0 to 1, got {limit:g}",
            hint="for example 0.01",
        )
    return limit


def too_many(
    rejected: Sequence[Rejected], usable: int, total: int, *, fault: str, why: str, hint: str
) -> DataError:
    """Return the error for too many unusable records, of those found so far."""
    first, count = rejected[0], len(rejected)
    least = "at least " if count + usable < total else ""
    return DataError(
        f"{least}{count:,} of {total:,} {fault}, {why}: {first.key}: {first.reason}", hint=hint
    )


def write_rejected(path: Path, rejected: Iterable[Rejected]) -> SideFile:
    """Write unusable records as JSON lines.

    Each has ``key`` and ``reason``, and for a bad value of a table ``column`` and ``value``.
    """
    sha, size = hashlib.sha256(), 0
    with path.open("wb") as file:
        for each in rejected:
            body = each.model_dump(exclude_defaults=True, exclude={"hint"})
            text = json.dumps(body, ensure_ascii=False)
            line = text.encode(errors="backslashreplace") + b"\n"
            sha.update(line)
            size += file.write(line)
    return SideFile(name=path.name, bytes=size, digest=f"sha256:{sha.hexdigest()}")


def read_rejected(path: Path) -> list[Rejected]:
    """Return the records that a file lists."""
    try:
        return [Rejected.model_validate_json(line) for line in path.read_bytes().splitlines()]
    except (OSError, ValueError) as error:
        raise CorruptError(
            f"{path} is not a list of rejected records",
            hint="'timonel data verify' lists all problems",
        ) from error

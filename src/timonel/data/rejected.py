"""Unusable records: their limit, and the file that lists them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from timonel.data.manifest import Rejected, Sidecar
from timonel.errors import CorruptError, DataError, SpecError

REJECTED_NAME = "rejected.jsonl"
DEFAULT_LIMIT = 0.01


def check_limit(limit: float) -> float:
    """Validate the greatest fraction of unusable records.

    Raises:
        SpecError: It is not between 0 and 1.
    """
    if not 0 <= limit <= 1:
        raise SpecError(
            f"expected a fraction of rejected records from 0 to 1, got {limit:g}",
            hint="for example 0.01",
        )
    return limit


def check_rejected(rejected: Sequence[Rejected], total: int, limit: float) -> None:
    """Check the number of unusable records so far against a fraction of all records.

    Raises:
        DataError: There are too many.
    """
    count = len(rejected)
    if count <= limit * total:
        return
    first = rejected[0]
    what = "1 record" if count == 1 else f"{count:,} records"
    raise DataError(
        f"{what} of {total:,} cannot be used, above the limit of {limit:.2%}: "
        f"{first.key}: {first.reason}",
        hint=first.hint or "repair or remove such records, or raise --max-rejected",
    )


def write_rejected(path: Path, rejected: Iterable[Rejected]) -> Sidecar:
    """Write unusable records as JSON lines.

    Each has ``key`` and ``reason``, and for a bad value of a table ``column`` and ``value``.

    Raises:
        OSError: The file cannot be written.
    """
    sha, size = hashlib.sha256(), 0
    with path.open("wb") as file:
        for each in rejected:
            body = each.model_dump(exclude_defaults=True, exclude={"hint"})
            text = json.dumps(body, ensure_ascii=False)
            line = text.encode(errors="backslashreplace") + b"\n"
            sha.update(line)
            size += file.write(line)
    return Sidecar(name=path.name, bytes=size, digest=f"sha256:{sha.hexdigest()}")


def read_rejected(path: Path) -> list[Rejected]:
    """Return the records that a file lists.

    Raises:
        CorruptError: The file is damaged or missing.
    """
    try:
        return [Rejected.model_validate_json(line) for line in path.read_bytes().splitlines()]
    except (OSError, ValueError) as error:
        raise CorruptError(
            f"{path} is not a list of rejected records",
            hint="'timonel data verify' lists all problems",
        ) from error

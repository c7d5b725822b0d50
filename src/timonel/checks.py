"""Result of a check of a machine or a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """Verdict of a check.

    ``note`` is a possible improvement, ``fail`` will not work.
    """

    OK = "ok"
    NOTE = "note"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Check:
    """Result of a check, with a hint on what to do."""

    area: str
    name: str
    verdict: Verdict
    found: str
    hint: str | None = None

"""One check and its verdict."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """What a check found: ``note`` says what could be had, ``fail`` what will not work."""

    OK = "ok"
    NOTE = "note"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Check:
    """What was looked at, what was found, and what to do about it."""

    area: str
    name: str
    verdict: Verdict
    found: str
    hint: str | None = None

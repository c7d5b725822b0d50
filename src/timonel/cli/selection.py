"""Select runs by status, name, model and age."""

from __future__ import annotations

import datetime as dt
import fnmatch
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from timonel.errors import SpecError
from timonel.units import parse_seconds

if TYPE_CHECKING:
    from timonel.tracking import RunRecord

Models = Mapping[str, Sequence[str]]
"""Model versions made from each run, by run id."""


def models_of(runs: Sequence[RunRecord]) -> Models:
    """Return the versions published by or exported from each run."""
    exports = [run for run in runs if run.kind == "export"]
    made: dict[str, list[str]] = {}
    for run in reversed(exports):
        versions = [item.label for item in run.outputs if item.type == "model"]
        # An export that failed early, or that was recorded elsewhere, may name no run.
        for source in filter(None, (run.id, run.params.get("run"))):
            made.setdefault(str(source), []).extend(versions)
    return made


@dataclass(frozen=True)
class Selection:
    """Filter of a list of runs.

    Attributes:
        status: Only runs with this status.
        name: Only runs with this name; ``*`` matches anything.
        model: Only runs from which this model, or one version of it, was made.
        since: Only runs that started since this time, in Unix seconds.
    """

    status: str | None = None
    name: str | None = None
    model: str | None = None
    since: float | None = None

    def of(self, runs: Sequence[RunRecord], models: Models) -> list[RunRecord]:
        """Return the matching runs, in order."""
        return [run for run in runs if self._fits(run, models.get(run.id, ()))]

    def _fits(self, run: RunRecord, versions: Sequence[str]) -> bool:
        return (
            self.status in {None, run.status}
            and (self.name is None or fnmatch.fnmatchcase(run.name or "", self.name))
            and (
                self.model is None
                or any(self.model in {each, each.partition("/")[0]} for each in versions)
            )
            and (self.since is None or run.started_at >= self.since)
        )


def parse_since(text: str | None, now: float | None = None) -> float | None:
    """Parse a date (2026-01-31) or an age (2d) to Unix seconds.

    Args:
        text: The date in local time, or the age with its unit.
        now: The current time in Unix seconds.

    Raises:
        SpecError: The text is neither.
    """
    if text is None:
        return None
    try:
        return dt.datetime.fromisoformat(text).astimezone().timestamp()
    except ValueError:
        pass
    try:
        return (time.time() if now is None else now) - parse_seconds(text)
    except SpecError:
        raise SpecError(
            f"--since {text!r} is neither a date nor an age", hint="as in 2026-01-31, 12h or 7d"
        ) from None

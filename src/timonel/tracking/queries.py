"""Conditions and orders of runs, such as ``params.lr < 0.01`` and ``-val_accuracy``. Pure."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from timonel.errors import SpecError, did_you_mean
from timonel.tracking.records import RunRecord

_CONDITION = re.compile(r"\s*([\w.:/-]+?)\s*(<=|>=|!=|==|=|<|>)\s*(.+?)\s*")
_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
}
_PARAMS, _METRICS = "params.", "metrics."
_FIELDS: dict[str, Callable[[RunRecord], Any]] = {
    "kind": lambda run: run.kind,
    "name": lambda run: run.name,
    "script": lambda run: run.script,
    "status": lambda run: run.status,
    "started_at": lambda run: run.started_at,
    "duration_s": lambda run: run.duration_s,
    "restarts": lambda run: run.restarts,
}


@dataclass(frozen=True)
class Condition:
    """Comparison of a value of a run with a constant.

    Attributes:
        key: ``params.NAME``, ``metrics.NAME``, a field such as ``status``, or a metric's name.
        comparison: One of ``<``, ``<=``, ``>``, ``>=``, ``=``, ``==`` and ``!=``.
        value: The constant; two numbers are compared as numbers, anything else as texts.
    """

    key: str
    comparison: str
    value: str

    @classmethod
    def parse(cls, text: str) -> Condition:
        """Parse a condition such as ``params.lr < 0.01``."""
        found = _CONDITION.fullmatch(text)
        if found is None:
            raise SpecError(
                f"cannot parse the condition {text!r}",
                hint="as in 'val_accuracy > 0.9', 'params.lr < 0.01' or 'status = failed'",
            )
        key, comparison, value = found.groups()
        return cls(key, comparison, value.strip("'\""))

    def holds(self, run: RunRecord) -> bool:
        """Whether a run has the value and meets the condition."""
        value = value_of(run, self.key)
        if value is None:
            return False
        numbers = _number(value), _number(self.value)
        if None not in numbers:
            return _COMPARISONS[self.comparison](*numbers)
        return _COMPARISONS[self.comparison](str(value), self.value)


@dataclass(frozen=True)
class Query:
    """Conditions that runs meet, and the value to sort them by."""

    conditions: tuple[Condition, ...]
    sort: str | None

    @classmethod
    def parse(cls, where: Iterable[str], sort: str | None) -> Query:
        """Parse conditions such as ``loss < 1``, and take a value such as ``-accuracy``."""
        return cls(tuple(map(Condition.parse, where)), sort)

    def select(self, runs: Iterable[RunRecord]) -> list[RunRecord]:
        """Return the runs that meet all conditions, sorted."""
        found = [run for run in runs if all(each.holds(run) for each in self.conditions)]
        return found if self.sort is None else sort_runs(found, self.sort)


def value_of(run: RunRecord, key: str) -> Any:
    """Return a parameter, a field, or the last value of a metric; None if the run has none."""
    if key.startswith(_PARAMS):
        return run.params.get(key.removeprefix(_PARAMS))
    if key in _FIELDS:
        return _FIELDS[key](run)
    return run.metrics.get(key.removeprefix(_METRICS))


def sort_runs(runs: Sequence[RunRecord], key: str) -> list[RunRecord]:
    """Sort runs by a value, smallest first, or largest first with ``-``.

    Runs without the value come last; equal ones keep their order.
    """
    name = key.removeprefix("-")
    values = [(run, value_of(run, name)) for run in runs]
    known = [(run, value) for run, value in values if value is not None and not _is_nan(value)]
    if runs and not known:
        names = {*_FIELDS, *(metric for run in runs for metric in run.metrics)}
        raise SpecError(
            f"no run has a value of {name!r}",
            hint=did_you_mean(name, names) or "use a metric, params.NAME, or a column",
        )
    numbers = {run.id: _number(value) for run, value in known}
    keys = {run.id: str(value) for run, value in known} if None in numbers.values() else numbers
    ordered = sorted(
        (run for run, _ in known),
        key=lambda run: keys[run.id],  # type: ignore[arg-type,return-value]  # all of one type
        reverse=key.startswith("-"),
    )
    return [*ordered, *(run for run, _ in values if run.id not in keys)]


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None

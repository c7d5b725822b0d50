"""Check the number of lines of each package against budget.toml.

python scripts/check_budget.py
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
BUDGET = ROOT / "budget.toml"
PACKAGE = ROOT / "src" / "timonel"
TOP = "top"
"""Name of the modules outside the subpackages."""
TOTAL = "total"
_RAISE = f"raise the value in {BUDGET.name} and give the reason in the commit message"


class Comparison(NamedTuple):
    """Result of a check: errors, and notes on budgets that can be lowered."""

    errors: list[str]
    notes: list[str]


def count_lines(package: Path) -> dict[str, int]:
    """Return the lines of the Python files by subpackage, with `TOP` and `TOTAL`."""
    counts = {TOP: sum(map(_lines_of, package.glob("*.py")))}
    for folder in filter(Path.is_dir, package.iterdir()):
        files = list(folder.rglob("*.py"))
        if files:
            counts[folder.name] = sum(map(_lines_of, files))
    return {**counts, TOTAL: sum(counts.values())}


def _lines_of(path: Path) -> int:
    return len(path.read_bytes().splitlines())


def compare(
    budgets: Mapping[str, int], counts: Mapping[str, int], unit: str, cure: str
) -> Comparison:
    """Compare counts with their budgets.

    Args:
        budgets: Largest allowed counts by name.
        counts: Measured counts by name.
        unit: What is counted, for messages; empty if the names say it.
        cure: How to get below a budget, in the imperative.
    """
    errors, notes = [], []
    for name in sorted({*budgets, *counts}):
        budget, count = budgets.get(name), counts.get(name)
        if budget is None:
            errors.append(f"{name} has no budget. Add {name} = {count} to {BUDGET.name}.")
        elif count == 0:
            errors.append(f"{name} is 0: the measurement does not see timonel's modules.")
        elif count is None:
            errors.append(f"{name} has a budget but does not exist. Remove it from {BUDGET.name}.")
        elif count > budget:
            excess = f"{count - budget} above the budget of {budget}"
            errors.append(f"{name}: {_amount(count, unit)}, {excess}. {cure}, or {_RAISE}.")
        elif count < budget:
            rest = f"{budget - count} below the budget"
            notes.append(f"{name}: {_amount(count, unit)}, {rest}. Lower the value to {count}.")
    return Comparison(errors, notes)


def _amount(count: int, unit: str) -> str:
    return f"{count} {unit}".rstrip()


def read_budget(section: str) -> dict[str, Any]:
    """Return a section of budget.toml, whose values are numbers, by name or in subsections."""
    try:
        found: dict[str, Any] = tomllib.loads(BUDGET.read_text())[section]
    except (KeyError, tomllib.TOMLDecodeError) as error:
        raise SystemExit(f"{BUDGET.name} cannot be read: {error!r}") from error
    for name, value in found.items():
        numbers = value.values() if isinstance(value, dict) else (value,)
        if any(type(number) is not int for number in numbers):
            raise SystemExit(f"{BUDGET.name}: {name} = {value!r}: expected whole numbers.")
    return found


def report(comparison: Comparison) -> int:
    """Print a comparison; return the exit code."""
    for line in comparison.notes:
        print(f"note: {line}")
    for line in comparison.errors:
        print(f"error: {line}", file=sys.stderr)
    return 1 if comparison.errors else 0


if __name__ == "__main__":
    sys.exit(report(compare(read_budget("lines"), count_lines(PACKAGE), "lines", "Delete code")))

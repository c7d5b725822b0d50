"""Choose the role of each column of a table, as given or inferred, with the reason."""

from __future__ import annotations

from typing import Any

from timonel.data.schema import ColumnRole, columns_option, type_word
from timonel.data.sources.arrow import as_texts, kind_of, usable
from timonel.data.sources.base import SourceOptions
from timonel.data.sources.columns import Kinds, count, shorten
from timonel.data.sources.inference import Inference, first_rounded, infer, rounding, unassigned
from timonel.data.sources.kinds import KINDS
from timonel.data.sources.tablefile import TableFile
from timonel.errors import DataError
from timonel.storage.location import Location


def column_role(
    table: Location, file: TableFile, name: str, column: Any, options: SourceOptions
) -> tuple[Kinds | None, ColumnRole]:
    """Return how to use a column, and its classified values if it has texts or numbers."""
    given = options.columns.get(name)
    if given in KINDS:
        return None, ColumnRole(name=name, role=given, note="as given")
    if given is None and name == options.group_by:
        return None, ColumnRole(name=name, role="group", note="equal values stay in one split")
    values, reason = usable(column, is_category=given == "categorical")
    if values is None:
        return None, _role_by_type(table, name, column, reason, options)
    kinds = Kinds.of(values)
    found = Inference(given) if given else infer(kinds, name, is_typed=file.is_typed)
    notes = ["as given" if given else found.note]
    if found.first_bad is not None:
        notes[0] += f" in {file.place(found.first_bad)}"
    if found.cure:
        notes[0] += f": {found.cure}"
    rounded = None
    if found.role == "numeric":
        notes += _numeric_notes(table, name, kinds)
        rounded = first_rounded(kinds)
    if rounded is not None:
        kept = columns_option(name, "category")
        cure = f"harmless unless they are identifiers; keep those with {kept}, or =text"
        notes.append(f"{rounding(kinds, rounded)}: {cure}")
    if found.role == "split":
        check_splits(table, name, values)
    is_doubtful = found.is_doubtful or rounded is not None
    note = "; ".join(filter(None, notes))
    described = kinds.described_as(found.role)
    return kinds, ColumnRole(
        name=name, role=found.role, values=described, note=note, is_doubtful=is_doubtful
    )


def check_splits(table: Location, name: str, values: Any) -> None:
    """Check that a column has names of splits only."""
    if wrong := unassigned(as_texts(values)):
        raise DataError(
            f"expected train, validation or test in column {name!r} of {table}, "
            f"got {shorten(wrong[0])}",
            hint=f"correct it, or ignore the column with {columns_option(name, 'drop')}",
        )


def _numeric_notes(table: Location, name: str, kinds: Kinds) -> list[str]:
    if not count(kinds.number):
        raise DataError(
            f"column {name!r} of {table} has no finite numbers",
            hint=f"use {columns_option(name, 'category')}, or =drop",
        )
    notes = []
    if bad := len(kinds.unusable()):
        one = "value is no finite 32-bit number: row"
        what = one if bad == 1 else "values are no finite 32-bit numbers: rows"
        notes.append(f"{bad:,} {what} rejected")
    return notes


def _role_by_type(
    table: Location, name: str, column: Any, reason: str, options: SourceOptions
) -> ColumnRole:
    """Return the role of a column whose type has neither texts nor numbers."""
    given = options.columns.get(name)
    kind = kind_of(column) if given is None else None
    if kind is not None:
        return ColumnRole(name=name, role=kind, note=f"from the type {column.type}")
    if given not in {None, "drop"}:
        raise DataError(
            f"column {name!r} of {table} cannot be {type_word(given)}: {reason}",
            hint="give it another type, or drop it",
        )
    if given == "drop":
        return ColumnRole(name=name, role="drop", note="as given")
    if reason != "no values":
        kept = "bytes" if reason == "bytes" else "json"
        reason += f": keep them with {columns_option(name, kept)}"
    return ColumnRole(name=name, role="drop", note=reason, is_doubtful=True)

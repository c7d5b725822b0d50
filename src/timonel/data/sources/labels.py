"""Read the label column of a table: its task, and the label of each row."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from timonel.data.manifest import Rejected
from timonel.data.schema import PLAIN_NUMBERS, Task
from timonel.data.sources.arrow import (
    as_values,
    has_several_labels,
    is_text,
    text_of,
    usable,
    value_type,
)
from timonel.data.sources.columns import Kinds, NumberColumn, WordArray, count
from timonel.data.sources.inference import first_rounded, has_codes, infer, rounding
from timonel.data.sources.markers import usable_words
from timonel.data.sources.tablefile import TableFile
from timonel.errors import DataError
from timonel.storage.location import Location

_FEW = 20
"""With more distinct whole numbers than this, a label means regression."""


class LabelColumn:
    """Label column of a table, with a given task and known labels if a schema has them."""

    def __init__(
        self,
        table: Location,
        file: TableFile,
        name: str,
        task: Task | None,
        known: Collection[str],
    ) -> None:
        self.warnings: list[str] = []
        self._table = table
        self._file = file
        self._name = name
        self._task = task
        self._known = known

    def read(self) -> tuple[Task, list[str | float]]:
        """Return the task and each row's label; missing labels are empty."""
        name, asked = self._name, self._task
        column = self._file.table[name]
        if asked == "multilabel" or (asked is None and has_several_labels(column)):
            if is_text(column.type):
                column = self._words(column)
            return "multilabel", [multiple_labels(value) for value in as_values(column)]
        kind = value_type(column.type)
        is_date = pa.types.is_temporal(kind)
        is_category = pa.types.is_boolean(kind) or (is_date and asked == "classification")
        values, reason = usable(column, is_category=is_category)
        if values is None:
            raise DataError(
                f"column {name!r} of {self._table} is not usable as a label: {reason}",
                hint="choose another --label",
            )
        kinds = Kinds.of(values)
        bad, filled = count(kinds.bad), len(values) - count(kinds.missing)
        # A few words among numbers are errors of their rows.
        numeric = bad == 0 or (bad * 10 <= filled and asked is None)
        if kinds.is_text and (self._file.is_typed or has_codes(kinds)):
            numeric = False
        if asked == "regression" and bad * 10 > filled:
            raise DataError(
                f"a regression needs numbers, but the label column {name!r} has words",
                hint="choose another --label, or --task classification",
            )
        if not numeric and asked != "regression":
            self._check_words(kinds)
            return "classification", self._classes(values)
        return self._numeric_labels(kinds, column)

    def check(self, found: set[str | float], rejected: Sequence[Rejected]) -> None:
        """Check that there are at least two labels."""
        if len(found) < 2:
            what = f"only {found.pop()!r}" if found else "none"
            if rejected:
                first = rejected[0]
                what += f" ({len(rejected):,} rejected: {first.key}: {first.reason})"
            raise DataError(
                f"column {self._name!r} of {self._table} needs at least two labels, found {what}",
                hint="name the label column with --label",
            )

    def _classes(self, values: Any) -> list[str | float]:
        return list(WordArray.of(self._words(values)).texts())

    def _words(self, values: Any) -> Any:
        texts, warnings = usable_words(
            self._name, values, self._known, is_typed=self._file.is_typed, is_label=True
        )
        self.warnings += warnings
        return texts

    def _numeric_labels(self, kinds: Kinds, column: Any) -> tuple[Task, list[str | float]]:
        numbers = NumberColumn.of(kinds)
        values = numbers.values
        known = values[~np.isnan(values)]
        whole = bool(np.all(known == np.floor(known)))
        few = len(np.unique(known)) <= min(_FEW, max(2, len(known) // 2))
        task = self._task or ("classification" if whole and few else "regression")
        if task == "regression":
            if (row := first_rounded(kinds)) is not None:
                cure = "subtract an offset from them"
                self.warnings.append(f"label {self._name}: {rounding(kinds, row)}: {cure}")
            return task, ["" if np.isnan(number) else float(number) for number in values]
        if whole and not numbers.is_rounded:
            return task, ["" if np.isnan(number) else str(int(number)) for number in values]
        return task, self._classes(column)

    def _check_words(self, kinds: Kinds) -> None:
        """Reject an unusable label column, such as free text or formatted numbers."""
        found, name = infer(kinds, is_typed=self._file.is_typed), self._name
        is_number = found.cure == PLAIN_NUMBERS
        is_usable = found.role in {"categorical", "image"} or found.note == "no values"
        if self._task is None and (is_number or not is_usable):
            advice = found.cure if is_number else "choose another --label"
            raise DataError(
                f"column {name!r} of {self._table} is not usable as a label: {found.note}",
                hint=f"{advice}, or force it with --task classification",
            )


def multiple_labels(value: Any) -> str:
    """Return labels sorted and joined by bars; '' if the value is missing, '|' if it is empty."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return ""
    labels = value.split("|") if isinstance(value, str) else [text_of(each) for each in value]
    if not isinstance(value, str) and any("|" in label for label in labels):
        raise DataError(f"a label contains a bar: {labels}", hint="use another character")
    names = {label.strip() for label in labels}
    if len(names) < len(labels) and names <= {"0", "1", "0.0", "1.0", "false", "true"}:
        raise DataError(f"labels are one-hot vectors: {labels}", hint="write names of classes")
    return "|".join(sorted(names - {""})) or "|"

"""Texts such as ``NA`` in columns of words: missing values or words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from timonel.data.sources.arrow import as_texts
from timonel.data.sources.kinds.base import MISSING

MISSING_WORDS = (
    *("#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN"),
    *("<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null", "?"),
)
"""Texts of a file without types that are no words: pandas' defaults, and UCI's question mark."""


KEEP_WORD = (
    "to keep it as a {}, write a schema with 'timonel data schema', add it to the {}, and pass it "
    "as --schema"
)


def usable_words(
    name: str, values: Any, known: Collection[str], *, is_typed: bool, is_label: bool = False
) -> tuple[Any, list[str]]:
    """Return a column as texts, empty where missing, and warnings of texts such as ``NA``.

    Texts that the user lists are words; all are if the file's types can express missing values.
    """
    texts = as_texts(values)
    found = Markers.of(texts, known, is_typed=is_typed)
    return found.removed_from(texts), list(found.warnings(name, is_label=is_label))


@dataclass(frozen=True)
class Markers:
    """Cells by text that may stand for a missing value; those not in ``missing`` are words."""

    counts: Mapping[str, int]
    missing: Collection[str]

    @classmethod
    def of(cls, texts: Any, known: Collection[str], *, is_typed: bool) -> Self:
        """Find the markers of missing values among trimmed texts; see `usable_words`."""
        values = pa.array({*MISSING_WORDS, *MISSING} - {"", *known}, pa.string())
        is_marker = pc.or_(pc.is_in(texts, values), pc.is_in(pc.utf8_lower(texts), values))
        found = Counter(pc.filter(texts, is_marker).to_pylist())
        counts = {text: found[text] for text in sorted(found) if text not in known}
        return cls(counts, () if is_typed else [word for word in counts if word in MISSING_WORDS])

    def removed_from(self, texts: Any) -> Any:
        """Return the texts without the missing ones, which are empty."""
        if not self.missing:
            return texts
        return pc.if_else(pc.is_in(texts, pa.array(self.missing)), "", texts)

    def warnings(self, column: str, *, is_label: bool) -> Iterator[str]:
        """Yield a line about the missing values, and one about the words."""
        what, place = ("class", "labels") if is_label else ("category", f"vocabulary of {column}")
        for texts, fate, cure in (
            (
                [text for text in self.counts if text in self.missing],
                "no label" if is_label else "missing",
                KEEP_WORD.format(what, place),
            ),
            (
                [text for text in self.counts if text not in self.missing],
                f"a {what}",
                "leave cells empty where a value is missing",
            ),
        ):
            if texts:
                shown = ", ".join(f"{text!r} ({self.counts[text]:,} rows)" for text in texts)
                verb = "is" if len(texts) == 1 else "are each"
                yield f"column {column}: {shown} {verb} {fate}: {cure}"

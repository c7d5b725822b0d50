"""Parse text columns as numbers or words with Arrow and NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from timonel.data.schema import CategoricalColumn, NumericColumn
from timonel.data.sources.column_types import Kinds, trim

MAX_VOCABULARY = 1000
"""Vocabulary limit, to keep one-hot vectors short; rarer words are unknown."""


@dataclass(frozen=True)
class Numbers:
    """Column of numbers; missing values are NaN."""

    values: npt.NDArray[np.float64]

    @classmethod
    def of(cls, kinds: Kinds) -> Self:
        """Convert texts to numbers; values that are not finite numbers are missing."""
        numbers = pc.cast(pc.if_else(kinds.number, kinds.texts, None), pa.float64())
        return cls(numbers.to_numpy(zero_copy_only=False).astype(np.float64))

    def __getitem__(self, row: int) -> float:
        return float(self.values[row])

    def describe(self, name: str, rows: npt.NDArray[np.int64]) -> NumericColumn:
        """Return the column's statistics over ``rows``."""
        values = self.values[rows]
        known = values[~np.isnan(values)]
        missing = len(values) - len(known)
        if not len(known):
            return NumericColumn(name=name, mean=0, std=0, minimum=0, maximum=0, missing=missing)
        return NumericColumn(
            name=name,
            mean=float(known.mean()),
            std=float(known.std()),
            minimum=float(known.min()),
            maximum=float(known.max()),
            missing=missing,
        )


@dataclass(frozen=True)
class Words:
    """Column of words; missing values are empty."""

    codes: npt.NDArray[np.int32]
    words: list[str]

    @classmethod
    def of(cls, texts: Any) -> Self:
        """Trim and dictionary-encode the texts."""
        encoded = pc.dictionary_encode(trim(texts))
        return cls(encoded.indices.to_numpy(), encoded.dictionary.to_pylist())

    def __getitem__(self, row: int) -> str:
        return self.words[int(self.codes[row])]

    def texts(self) -> Iterator[str]:
        """Yield the word of each row."""
        return (self.words[code] for code in self.codes)

    def describe(self, name: str, rows: npt.NDArray[np.int64]) -> CategoricalColumn:
        """Return the vocabulary of ``rows``: the most frequent words, sorted."""
        counts = np.bincount(self.codes[rows], minlength=len(self.words))
        ranked = sorted(
            (-int(count), word) for count, word in zip(counts, self.words, strict=True) if count
        )
        known = [word for _, word in ranked if word]
        return CategoricalColumn(
            name=name,
            vocabulary=tuple(sorted(known[:MAX_VOCABULARY])),
            dropped=max(0, len(known) - MAX_VOCABULARY),
            missing=sum(-count for count, word in ranked if not word),
        )


Values = Numbers | Words

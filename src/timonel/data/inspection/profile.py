"""Profile of records: the distribution of every feature, from one pass.

Features are profiled by their content, so that it works for any schema and any TFRecord file.
"""

from __future__ import annotations

import itertools
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from timonel.data.dataset import Dataset, check_split
from timonel.data.examples import decode_example
from timonel.data.inspection.distributions import Distribution, Numbers, Words
from timonel.data.schema import (
    COLUMN_PREFIX,
    IMAGE_FEATURE,
    KEY_FEATURE,
    LABEL_FEATURE,
    SPLITS,
    ImageSchema,
    Split,
)
from timonel.data.sources.imagefile import image_format, open_image
from timonel.data.sources.kinds.dates import MISSING_DATE
from timonel.data.sources.kinds.lists import BOX_VALUES

Progress = Callable[[int, int], None]
_LONGEST_WORD = 200
_TICK = 1000
COUNT = "count"
ASPECT_RATIO = "aspect ratio"
"""Part of a name of a distribution: numbers of values or boxes, of which none is missing."""
_TEXTS = frozenset({"text", "json", "bytes"})
_KINDS = {bytes: "bytes", int: "int64", float: "float"}
_Kind = TypeVar("_Kind", Numbers, Words)
_Item = TypeVar("_Item")


@dataclass
class Feature:
    """Numbers of records by type of a feature's values, and by their number.

    Types are bytes, int64 and float.
    """

    types: Counter[str] = field(default_factory=Counter)
    lengths: Counter[int] = field(default_factory=Counter)


class Profile:
    """Distributions of the features of records, by name; ``column/age`` has the name ``age``.

    Images have several: width, height, aspect ratio, bytes, format and mode. So have boxes: number,
    height, width and class. Texts, JSON and other content have one of their size. A feature whose
    number of values differs between records has one of that number.

    Args:
        examples: Features of each record: lists of bytes, ints or floats by name.
        labels: Class names, by the number in the feature ``label``.
        types: Types of columns by feature, as the schema of a dataset has them.

    Attributes:
        records: Number of records.
        features: Types and numbers of values of each feature.
        distributions: The distributions by name.
        origins: The feature of each distribution.
    """

    def __init__(
        self,
        examples: Iterable[Mapping[str, Sequence[Any]]],
        labels: Sequence[str] = (),
        types: Mapping[str, str] | None = None,
    ) -> None:
        self.records = 0
        self.features: dict[str, Feature] = {}
        self.distributions: dict[str, Distribution] = {}
        self.origins: dict[str, str] = {}
        self._labels = labels
        self._types = types or {}
        self._found: dict[tuple[str, str, type[Distribution]], Distribution] = {}
        self._empty: Counter[str] = Counter()
        for features in examples:
            self._add(features)
        self._add_lengths()
        self._name()

    def summary(self) -> dict[str, Any]:
        """Return the distributions as JSON values."""
        columns = {name: found.summary() for name, found in self.distributions.items()}
        return {"records": self.records, "columns": columns}

    def _add(self, features: Mapping[str, Sequence[Any]]) -> None:
        self.records += 1
        for name, values in features.items():
            feature = self.features.get(name) or self.features.setdefault(name, Feature())
            feature.lengths[len(values)] += 1
            if values:
                feature.types[_KINDS[type(values[0])]] += 1
            if self._types.get(name) == "boxes":
                self._add_boxes(name, values)
            elif values and name != KEY_FEATURE:
                self._add_values(name, values)

    def _add_values(self, name: str, values: Sequence[Any]) -> None:
        if isinstance(values[0], bytes):
            for value in values:
                self._add_bytes(name, value)
        elif name == LABEL_FEATURE and self._labels:
            self._words(name).add([self._label(value) for value in values])
        else:
            self._numbers(name).add([math.nan] if MISSING_DATE in values else values)

    def _add_bytes(self, name: str, value: bytes) -> None:
        is_text = self._types.get(name) in _TEXTS
        word = None if is_text else as_word(value)
        if not value:
            self._empty[name] += 1
        elif word is not None:
            self._words(name).add([word])
        elif is_text or image_format(value[:12]) is None:
            self._numbers(name, "bytes").add([len(value)])
        else:
            self._add_image(name, value)

    def _add_boxes(self, name: str, values: Sequence[float]) -> None:
        self._numbers(name, COUNT).add([len(values) // BOX_VALUES])
        for start in range(0, len(values), BOX_VALUES):
            top, left, bottom, right, number = values[start : start + BOX_VALUES]
            self._numbers(name, "height").add([bottom - top])
            self._numbers(name, "width").add([right - left])
            self._words(name, "class").add([f"{number:g}"])

    def _add_image(self, name: str, content: bytes) -> None:
        self._numbers(name, "bytes").add([len(content)])
        try:
            image = open_image(content)
        except Exception:  # noqa: BLE001 - decoders raise all kinds of exceptions
            image = None
        if image is None:
            self._words(name, "format").add(["damaged"])
            return
        width, height = image.size
        self._numbers(name, "width").add([width])
        self._numbers(name, "height").add([height])
        self._numbers(name, ASPECT_RATIO).add([width / height])
        self._words(name, "format").add([str(image.format)])
        self._words(name, "mode").add([image.mode])

    def _add_lengths(self) -> None:
        """Count the values of features whose records have different numbers of them."""
        for name, feature in self.features.items():
            if len(feature.lengths.keys() - {0}) > 1 and self._types.get(name) != "boxes":
                values = self._numbers(name, COUNT)
                for length, count in feature.lengths.items():
                    values.add([length] * count)

    def _name(self) -> None:
        """Name the distributions, and count missing values."""
        for feature in self._empty:
            if not any(key[0] == feature for key in self._found):
                self._words(feature)
        # The features label and image keep their names; a column may be called "label", too.
        ordered = sorted(self._found.items(), key=lambda each: each[0][0].startswith(COLUMN_PREFIX))
        for (feature, part, kind), found in ordered:
            lengths = self.features[feature].lengths
            if part != COUNT and self._types.get(feature) != "boxes":  # none is not missing
                absent = self.records - lengths.total() + lengths[0]
                found.add_missing(absent + self._empty[feature])
            name = f"{feature.removeprefix(COLUMN_PREFIX)} {part}".rstrip()
            while name in self.distributions:
                name += f" ({feature} {kind.__name__.lower()})"
            self.distributions[name] = found
            self.origins[name] = feature
        self.distributions = dict(sorted(self.distributions.items()))

    def _label(self, number: int) -> str:
        is_known = 0 <= number < len(self._labels)
        return self._labels[number] if is_known else f"unknown ({number})"

    def _numbers(self, feature: str, part: str = "") -> Numbers:
        return self._distribution(Numbers, feature, part)

    def _words(self, feature: str, part: str = "") -> Words:
        return self._distribution(Words, feature, part)

    def _distribution(self, kind: type[_Kind], feature: str, part: str) -> _Kind:
        found = self._found.get((feature, part, kind))
        if found is None:
            is_date = kind is Numbers and self._types.get(feature) == "date"
            found = Numbers(is_date=True) if is_date else kind()
            self._found[feature, part, kind] = found
        return cast("_Kind", found)


def stats(
    dataset: Dataset | str | os.PathLike[str],
    *,
    split: str | None = None,
    progress: Progress | None = None,
) -> dict[Split, Profile]:
    """Return statistics of each split of a dataset that has records, or of one split.

    Args:
        dataset: The dataset, its folder, or its URI in a bucket.
        split: Only this split.
        progress: Called with the number of read and of all records.

    Raises:
        CorruptError: A record is damaged.
    """
    opened = dataset if isinstance(dataset, Dataset) else Dataset.open(dataset)
    chosen = SPLITS if split is None else (check_split(split),)
    tick = ticker(sum(map(opened.count, chosen)), progress)
    found: dict[Split, Profile] = {}
    for each in filter(opened.count, chosen):
        examples = map(decode_example, map(tick, opened.payloads(each)))
        found[each] = Profile(examples, opened.labels, types_of(opened))
    return found


def types_of(dataset: Dataset) -> dict[str, str]:
    """Return the types of a dataset's columns by feature."""
    schema = dataset.manifest.record_schema
    if isinstance(schema, ImageSchema):
        return {IMAGE_FEATURE: "image"}
    return {column.feature: column.type for column in schema.columns}


def ticker(total: int, progress: Progress | None) -> Callable[[_Item], _Item]:
    """Return a function that reports progress at times, and returns its argument."""
    done = itertools.count(1)

    def tick(item: _Item) -> _Item:
        number = next(done)
        if progress is not None and (number % _TICK == 0 or number == total):
            progress(number, total)
        return item

    return tick


def as_word(value: bytes) -> str | None:
    """Return bytes as text if they are a word or a short text, else None."""
    if len(value) > _LONGEST_WORD:
        return None
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return None
    return text if "\0" not in text else None

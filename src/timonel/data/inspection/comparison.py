"""Compare datasets or splits: schema, and distributions as TensorFlow Data Validation does.

Words differ by the L-infinity distance: the largest difference of a word's share. Numbers differ by
the Jensen-Shannon divergence (base 2, from 0 to 1) of up to 20 bins with equal shares of both.
A difference is reported above a smallest distance, and only if it is larger than what two samples
of these sizes from one distribution have with a probability of 0.99, over all columns together.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from timonel.data.dataset import Dataset, check_split
from timonel.data.inspection.distances import (
    Difference,
    Measure,
    difference_of_missing,
    difference_of_numbers,
    difference_of_words,
)
from timonel.data.inspection.distributions import Distribution, Numbers, Words
from timonel.data.inspection.profile import ASPECT_RATIO, COUNT, Profile, Progress, stats
from timonel.data.schema import COLUMN_PREFIX, ImageSchema, Split, type_word
from timonel.errors import DataError, SpecError

FailOn = Literal["none", "schema", "drift", "any"]
MIN_DISTANCE = 0.05
_FALSE_ALARMS = 0.01
_NAMED = 3
_RATIOS = 17.5
"""Bins of aspect ratios per unit of the logarithm.

Scaling rounds sides to whole pixels: usual ratios, such as 4:3, are at least 1.5 % from an edge.
"""


@dataclass(frozen=True)
class SchemaChange:
    """Difference of two schemas, in a column or in the labels."""

    name: str
    text: str


@dataclass(frozen=True)
class Distance:
    """Distance of a column between two samples.

    Args:
        column: Name of the column, or of a property of its images.
        samples: Their names, such as ``train`` and ``test``.
        distance: The distance, from 0 to 1.
        limit: The smallest distance that counts, or more for small samples.
    """

    column: str
    samples: tuple[str, str]
    measure: Measure
    distance: float
    limit: float
    counts: tuple[int, int]
    text: str

    @property
    def is_above(self) -> bool:
        """Whether the distance is above the limit."""
        return self.distance > self.limit


@dataclass(frozen=True)
class Comparison:
    """Differences of two datasets (drift), or of the splits of one (skew).

    Args:
        schema: Differences of the schemas.
        distances: Distances of all columns, those above their limits first.
    """

    schema: tuple[SchemaChange, ...]
    distances: tuple[Distance, ...]

    @property
    def drift(self) -> tuple[Distance, ...]:
        """Distances above their limits."""
        return tuple(each for each in self.distances if each.is_above)

    def fails(self, on: FailOn) -> bool:
        """Return whether there are differences of a kind."""
        is_schema, is_drift = on in {"schema", "any"}, on in {"drift", "any"}
        return bool((is_schema and self.schema) or (is_drift and self.drift))


def diff(
    old: Dataset | str | os.PathLike[str],
    new: Dataset | str | os.PathLike[str] | None = None,
    *,
    split: str | None = None,
    min_distance: float = MIN_DISTANCE,
    progress: Progress | None = None,
) -> Comparison:
    """Compare two datasets, or the training split of one with its other splits.

    Args:
        old: A dataset, its folder, or its URI in a bucket.
        new: Another one; without it, the splits of ``old`` are compared.
        split: The split to compare in both datasets [default: train]; or the one to compare with
            train [default: all].
        min_distance: Smallest distance that counts as drift or skew, from 0 to 1.
        progress: Called with the number of read and of all records of a dataset.

    Raises:
        SpecError: An option is wrong.
        DataError: There is nothing to compare.
    """
    if not 0 <= min_distance <= 1:
        raise SpecError(
            f"expected a distance from 0 to 1, got {min_distance:g}", hint="such as 0.05"
        )
    one = _opened(old)
    if new is None:
        found = stats(one, progress=progress)
        others = [check_split(split)] if split else [each for each in found if each != "train"]
        if "train" not in found or not others or not set(others) <= set(found) - {"train"}:
            raise DataError(
                f"{one.uri} has no {split or 'split besides train'} to compare with train",
                hint="compare it with another dataset",
            )
        pairs: list[_Pair] = [(("train", each), found["train"], found[each]) for each in others]
        return Comparison((), _distances(pairs, min_distance))
    other = _opened(new)
    chosen = check_split(split or "train")
    profiles = [_profile(each, chosen, progress) for each in (one, other)]
    pairs = [((f"old {chosen}", f"new {chosen}"), profiles[0], profiles[1])]
    return Comparison(tuple(_schema_changes(one, other)), _distances(pairs, min_distance))


def _opened(dataset: Dataset | str | os.PathLike[str]) -> Dataset:
    return dataset if isinstance(dataset, Dataset) else Dataset.open(dataset)


def _profile(dataset: Dataset, split: Split, progress: Progress | None) -> Profile:
    found = stats(dataset, split=split, progress=progress)
    if split not in found:
        raise DataError(f"{dataset.uri} has no records in {split}", hint="choose another split")
    return found[split]


def _schema_changes(old: Dataset, new: Dataset) -> Iterator[SchemaChange]:
    if old.task != new.task:
        yield SchemaChange("task", f"{old.task} became {new.task}")
    one, other = old.manifest.record_schema, new.manifest.record_schema
    if one.type != other.type:
        yield SchemaChange("records", f"{one.type} became {other.type}")
        return
    yield from _words_changed("labels", old.labels, new.labels)
    moved = [
        label
        for label in old.labels
        if label in new.labels and old.labels.index(label) != new.labels.index(label)
    ]
    if moved:
        yield SchemaChange("labels", f"other numbers: {_some(moved)}")
    before, after = _columns(old), _columns(new)
    for name in sorted({*before, *after}):
        if name not in after or name not in before:
            yield SchemaChange(name, "added" if name in after else "removed")
            continue
        for key in sorted(before[name].keys() & after[name].keys()):
            values = before[name][key], after[name][key]
            if key == "vocabulary":
                yield from _words_changed(name, *values)
            elif values[0] != values[1]:
                old_value, new_value = map(type_word, map(str, values))
                yield SchemaChange(name, f"{key} {old_value} became {new_value}")


def _columns(dataset: Dataset) -> dict[str, dict[str, Any]]:
    """Return what defines each column, without its statistics."""
    schema = dataset.manifest.record_schema
    if isinstance(schema, ImageSchema):
        return {"image": {"channels": schema.channels}}
    found = {
        column.name: column.model_dump(include={"type", "vocabulary", "classes", "channels"})
        for column in schema.columns
    }
    return {**found, "label": {"column": schema.label}}


def _words_changed(name: str, old: Sequence[str], new: Sequence[str]) -> Iterator[SchemaChange]:
    for what, words in (("added", set(new) - set(old)), ("removed", set(old) - set(new))):
        if words:
            yield SchemaChange(name, f"{len(words):,} {what}: {_some(sorted(words))}")


def _some(words: Sequence[str]) -> str:
    return ", ".join([*words[:_NAMED], *(["..."] if len(words) > _NAMED else [])])


_Pair = tuple[tuple[str, str], Profile, Profile]


def _distances(pairs: Sequence[_Pair], min_distance: float) -> tuple[Distance, ...]:
    shared = [
        (name, samples, _found(one, name, other), _found(other, name, one))
        for samples, one, other in pairs
        for name, feature in sorted({**one.origins, **other.origins}.items())
        if feature in one.features and feature in other.features
    ]
    chance = _FALSE_ALARMS / max(1, 2 * len(shared))
    found = [
        Distance(
            name,
            samples,
            each.measure,
            each.distance,
            max(min_distance, each.noise),
            (one.count, other.count),
            each.text,
        )
        for name, samples, one, other in shared
        for each in _differences(one, other, chance)
    ]
    return tuple(sorted(found, key=lambda each: (not each.is_above, -each.distance)))


def _found(profile: Profile, name: str, like: Profile) -> Distribution:
    """Return a distribution; if a column has no values at all, all are missing."""
    found = profile.distributions.get(name)
    feature = profile.origins.get(name, "").removeprefix(COLUMN_PREFIX)
    if isinstance(found, Numbers) and name == f"{feature} {ASPECT_RATIO}":
        return found.with_cells(lambda ratios: np.exp(np.round(np.log(ratios) * _RATIOS) / _RATIOS))
    if found is None:
        found = type(like.distributions[name])()
        if isinstance(found, Numbers) and name.endswith(f" {COUNT}"):  # the same in all records
            for length, count in profile.features[like.origins[name]].lengths.items():
                found.add([length] * count)
        else:
            found.add_missing(profile.records)
    return found


def _differences(one: Distribution, other: Distribution, chance: float) -> Iterator[Difference]:
    found = [difference_of_missing(one, other, chance)]
    if isinstance(one, Words) and isinstance(other, Words):
        found.append(difference_of_words(one, other, chance))
    elif isinstance(one, Numbers) and isinstance(other, Numbers):
        found.append(difference_of_numbers(one, other, chance))
    yield from (each for each in found if each is not None)

"""One pass over a dataset for its report: statistics, copies, near-duplicates and samples.

Memory grows by about 120 bytes per record with an image, and by 20 bytes per row.
"""

from __future__ import annotations

import hashlib
import itertools
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from timonel.data.dataset import Dataset
from timonel.data.examples import decode_example
from timonel.data.inspection.near_duplicates import find_copies, signature_of
from timonel.data.inspection.profile import Profile, Progress, ticker, types_of
from timonel.data.schema import KEY_FEATURE, LABEL_FEATURE, SPLITS, Split

_READ_AHEAD = 256
MAX_GROUPS, _PER_GROUP = 20, 4

Place = tuple[Split, int]
"""Split of a record, and its number in the split."""


@dataclass(frozen=True)
class Pair:
    """Image, its near-duplicate, and the bits of their hashes that differ."""

    copy: Place
    original: Place
    distance: int


@dataclass(frozen=True)
class Identical:
    """Groups of records with the same content, besides key and label.

    The first records are of contradictory groups, then of groups across splits.
    """

    groups: int
    across_splits: int
    contradictory: int
    first: tuple[tuple[Place, ...], ...]


@dataclass
class Survey:
    """Facts about the records of a dataset.

    Profiles are of splits with records. Samples of a regression have the label "".
    """

    profiles: dict[Split, Profile] = field(default_factory=dict)
    samples: dict[str, list[Place]] = field(default_factory=lambda: defaultdict(list))
    identical: Identical = Identical(0, 0, 0, ())
    pairs: tuple[Pair, ...] = ()


def survey(dataset: Dataset, per_label: int, progress: Progress | None = None) -> Survey:
    """Read all records once, and keep some samples of each label."""
    collected = _Collected(dataset, per_label)
    tick = ticker(dataset.count(), progress)
    with ThreadPoolExecutor(thread_name_prefix="hash") as pool:
        for split in SPLITS:
            if dataset.count(split):
                payloads = map(tick, dataset.payloads(split))
                records = collected.records(split, payloads, pool)
                profile = Profile(records, dataset.labels, types_of(dataset))
                collected.found.profiles[split] = profile
    collected.found.identical = collected.identical()
    collected.found.pairs = collected.pairs()
    return collected.found


class _Collected:
    """Compact facts about each record."""

    def __init__(self, dataset: Dataset, per_label: int) -> None:
        self.found = Survey()
        self._labels = dataset.labels
        self._types = types_of(dataset)
        self._per_label = per_label
        self._splits = array("b")
        self._numbers = array("q")
        self._classes = array("q")
        self._contents = array("Q")
        self._with_image = array("q")
        self._hashes = bytearray()
        self._thumbnails = bytearray()

    def records(
        self, split: Split, payloads: Iterable[bytes], pool: ThreadPoolExecutor
    ) -> Iterator[dict[str, list[Any]]]:
        """Yield the features of each record, and collect its facts."""
        has_images = "image" in self._types.values()
        examples = enumerate(map(decode_example, payloads))
        while batch := list(itertools.islice(examples, _READ_AHEAD)):
            signatures: Iterable[tuple[bytes, bytes] | None] = [None] * len(batch)
            if has_images:
                signatures = pool.map(lambda each: _signature(each[1], self._types), batch)
            for (number, features), signature in zip(batch, signatures, strict=True):
                self._add(split, number, features, signature)
                yield features

    def _add(
        self,
        split: Split,
        number: int,
        features: Mapping[str, list[Any]],
        signature: tuple[bytes, bytes] | None,
    ) -> None:
        numbers = sorted(features.get(LABEL_FEATURE, ())) if self._labels else []
        names = [self._labels[each] for each in numbers if 0 <= each < len(self._labels)]
        for name in names or [""]:
            samples = self.found.samples[name]
            if len(samples) < self._per_label:
                samples.append((split, number))
        if signature is not None:
            self._with_image.append(len(self._splits))
            self._hashes += signature[0]
            self._thumbnails += signature[1]
        self._splits.append(SPLITS.index(split))
        self._numbers.append(number)
        self._classes.append(hash(tuple(numbers)))
        self._contents.append(_fingerprint(features))

    def identical(self) -> Identical:
        """Return the groups of records with the same content."""
        contents = np.frombuffer(self._contents, np.uint64)
        if not len(contents):
            return Identical(0, 0, 0, ())
        order = np.argsort(contents, kind="stable")
        starts = np.flatnonzero(np.diff(contents[order], prepend=~contents[order[:1]]) != 0)
        sizes = np.diff(starts, append=len(order))
        many = sizes > 1
        across, contradictory = (
            (
                np.maximum.reduceat(values[order], starts)
                != np.minimum.reduceat(values[order], starts)
            )
            & many
            for values in (
                np.frombuffer(self._splits, np.int8),
                np.frombuffer(self._classes, np.int64),
            )
        )
        groups = np.flatnonzero(many)
        ranked = groups[np.lexsort((~across[groups], ~contradictory[groups]))]
        first = [
            tuple(
                self._place(each)
                for each in order[starts[group] :][: min(sizes[group], _PER_GROUP)]
            )
            for group in ranked[:MAX_GROUPS]
        ]
        return Identical(len(groups), int(across.sum()), int(contradictory.sum()), tuple(first))

    def pairs(self) -> tuple[Pair, ...]:
        """Return images with a near-duplicate in an earlier split, or with another label.

        Those that are identical are left out.
        """
        records = np.frombuffer(self._with_image, np.int64)
        found = find_copies(
            np.frombuffer(self._hashes, np.uint8).reshape(-1, 32),
            np.frombuffer(self._thumbnails, np.int8).reshape(-1, 64),
            np.frombuffer(self._splits, np.int8)[records],
            np.frombuffer(self._classes, np.int64)[records],
        )
        return tuple(
            Pair(self._place(copy), self._place(original), distance)
            for copy, original, distance in (
                (records[copy], records[original], distance) for copy, original, distance in found
            )
            if self._contents[copy] != self._contents[original]
        )

    def _place(self, record: int) -> Place:
        return SPLITS[self._splits[record]], self._numbers[record]


def first_image(features: Mapping[str, list[Any]], types: Mapping[str, str]) -> bytes | None:
    """Return the first encoded image of a record that is no mask, or None."""
    for name in sorted(name for name in features if types.get(name) == "image"):
        for value in features[name]:
            if value:
                return bytes(value)
    return None


def _signature(
    features: Mapping[str, list[Any]], types: Mapping[str, str]
) -> tuple[bytes, bytes] | None:
    content = first_image(features, types)
    return None if content is None else signature_of(content)


def _fingerprint(features: Mapping[str, list[Any]]) -> int:
    """Return a hash of a record's content, besides key and label."""
    digest = hashlib.blake2b(digest_size=8)
    for name in sorted(features.keys() - {KEY_FEATURE, LABEL_FEATURE}):
        digest.update(f"{name}\0".encode())
        for value in features[name]:
            digest.update(value if isinstance(value, bytes) else repr(value).encode())
            digest.update(b"\0")
    return int.from_bytes(digest.digest(), "little")

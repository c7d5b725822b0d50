"""Values of a table's columns that are neither plain numbers nor words, parsed row by row."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from timonel.data.examples import Feature
from timonel.data.schema import COLUMN_PREFIX, Column, columns_option
from timonel.data.sources.arrow import as_texts, is_word
from timonel.data.sources.base import Raw, UnusableError
from timonel.data.sources.columns import NumberColumn, Values
from timonel.data.sources.images import REQUESTS, RemoteImage, image_entry
from timonel.data.sources.kinds import Kind
from timonel.data.sources.kinds.pictures import files_of
from timonel.data.sources.listed import ListedFiles
from timonel.data.statistics import Statistics, ValueFacts
from timonel.errors import DataError, InputError

Hashes = npt.NDArray[np.uint64]
"""A hash of each row's value."""

_MIX = np.uint64(0x9E3779B97F4A7C15)
_IMAGES = frozenset({"image", "mask"})
_TEXTS = frozenset({"text", "json"})
_MOST_COPIES, _COPIES_SHARE = 3, 100
"""Up to 3 equal rows, or 1/100 of all rows, are copies; more are equal by chance."""
_BATCH = 1000


@dataclass(frozen=True)
class RowImages:
    """Size, time of the last change and fingerprint of the images of a row."""

    size: int = 0
    modified: int = 0
    group: str | None = None


_NO_IMAGES = RowImages()


@dataclass
class Cells:
    """Columns of the kinds in `timonel.data.sources.kinds`. Thread-safe for reading."""

    files: ListedFiles
    kinds: dict[str, Kind] = field(default_factory=dict)
    columns: dict[str, Any] = field(default_factory=dict)

    @property
    def has_images(self) -> bool:
        """Whether a column has images or masks."""
        return any(kind.type in _IMAGES for kind in self.kinds.values())

    def add(self, name: str, kind: Kind, values: Any) -> None:
        """Add a column."""
        self.kinds[name] = kind
        has_words = kind.type in _TEXTS and is_word(values.type)
        self.columns[name] = as_texts(values) if has_words else _as_python_has(values)

    def read(self, key: str, row: int) -> Raw:
        """Parse the values of one row; errors name its key."""
        features: dict[str, Feature] = {}
        facts: dict[str, ValueFacts] = {}
        for name, kind in self.kinds.items():
            value = self.columns[name][row].as_py()
            try:
                found = kind.parse(value, self.files.read)
            except (ValueError, UnusableError) as error:
                reason = error.reason if isinstance(error, UnusableError) else str(error)
                if kind.type in _IMAGES and "|" in str(value) and str(value)[0] != "[":
                    reason += f' (bars separate names; one with a bar: ["{value}"])'
                raise UnusableError(
                    key,
                    f"column {name!r}: {reason}",
                    hint=f"correct it, raise --max-rejected, or use {columns_option(name, 'drop')}",
                    column=name,
                    value=str(value)[:40],
                ) from error
            features[COLUMN_PREFIX + name] = found.feature
            facts[COLUMN_PREFIX + name] = found.facts
        return Raw(features, facts=facts)

    def describe(self, everything: Statistics, train: Statistics) -> Mapping[str, Column]:
        """Return the descriptions of the columns by name."""
        return {name: kind.describe(name, everything, train) for name, kind in self.kinds.items()}

    @functools.cached_property
    def has_remote(self) -> bool:
        """Whether rows name images of a bucket or a web server."""
        if not self.has_images:
            return False
        return self.files.are_remote or any("://" in name for name in self._names())

    @property
    def folder(self) -> str | None:
        """The lowest folder with all files that rows name, if they are on this machine."""
        return None if self.has_remote else self.files.folder_of(self._names())

    def _names(self) -> Iterator[str]:
        for column, kind in self.kinds.items():
            if kind.type in _IMAGES:
                for value in self.columns[column].to_pylist():
                    with contextlib.suppress(ValueError):
                        yield from (item for item in files_of(value) if isinstance(item, str))

    def all_images(self, rows: Iterable[int]) -> Iterator[RowImages]:
        """Yield facts about the images of each row; remote ones are asked for several at a time."""
        if not self.has_images:
            yield from (_NO_IMAGES for _ in rows)
        elif not self.has_remote:
            yield from map(self.images, rows)
        else:
            rest = iter(rows)
            with ThreadPoolExecutor(REQUESTS, thread_name_prefix="rows") as pool:
                while batch := list(itertools.islice(rest, _BATCH)):
                    yield from pool.map(self.images, batch)

    def images(self, row: int) -> RowImages:
        """Return facts about the images of a row; those that cannot be read have none."""
        size, modified, groups = 0, 0, []
        for name, kind in self.kinds.items():
            if kind.type not in _IMAGES:
                continue
            with contextlib.suppress(ValueError, UnusableError, DataError, InputError, OSError):
                for item in files_of(self.columns[name][row].as_py()):
                    found = self._entry(item)
                    size, modified = size + found.size, max(modified, found.modified)
                    groups += [found.group] if kind.type == "image" and found.group else []
        return RowImages(size, modified, " ".join(groups) or None)

    def digest(self, row: int) -> str | None:
        """Return the digest of all values of a row and of the images that they name."""
        sha = hashlib.sha256()
        for name, kind in self.kinds.items():
            if kind.type == "image":
                try:
                    items = files_of(self.columns[name][row].as_py())
                    contents = [i if isinstance(i, bytes) else self.files.read(i) for i in items]
                except (ValueError, UnusableError, OSError):
                    return None  # reading the record reports the error
                for content in contents:
                    sha.update(hashlib.sha256(content).digest())
        return sha.hexdigest()

    def _entry(self, item: str | bytes) -> RowImages:
        if isinstance(item, bytes):
            return RowImages(len(item), 0, hashlib.blake2b(item, digest_size=16).hexdigest())
        place = self.files.place(item)
        found = RemoteImage(place.uri, place.blob()) if not place.is_local else place.uri
        entry = image_entry(found, item, "", None)
        return RowImages() if entry is None else RowImages(entry.size, entry.modified, entry.group)


@dataclass(frozen=True)
class RowGroups:
    """Groups of identical rows, by a fingerprint of each; None to divide a row by its key.

    Rows with too many equals are divided and counted: values that repeat by chance would make the
    splits uneven.
    """

    names: Sequence[str | None]
    divided: int


def group_rows(
    columns: Mapping[str, Values], cells: Cells, dropped: Mapping[str, Hashes]
) -> RowGroups:
    """Group identical rows.

    The fingerprint includes the columns that the user drops, so that dropping one does not move
    rows to other splits. Rows that differ only there are identical: all have the least one.
    """
    parts = {name: hashes_of(column) for name, column in columns.items()}
    parts |= {name: value_hashes(column) for name, column in cells.columns.items()}
    source = _mixed({**parts, **dropped})
    _, group, sizes = np.unique(_mixed(parts), return_inverse=True, return_counts=True)
    most = max(_MOST_COPIES, len(source) // _COPIES_SHARE)
    least = np.full(len(sizes), np.iinfo(np.uint64).max)
    np.minimum.at(least, group, source)
    together = sizes[group] <= most
    _, own, own_sizes = np.unique(source, return_inverse=True, return_counts=True)
    grouped = together | (own_sizes[own] <= most)
    names = np.where(together, least[group], source).tolist()
    return RowGroups(
        [f"{name:016x}" if has else None for name, has in zip(names, grouped, strict=True)],
        int(np.count_nonzero(~together)),
    )


def _mixed(parts: Mapping[str, Hashes]) -> Hashes:
    """Return one hash per row."""
    mixed = np.zeros_like(next(iter(parts.values())))
    with np.errstate(over="ignore"):
        for name in sorted(parts):
            mixed = (mixed ^ parts[name]) * _MIX
            mixed ^= mixed >> np.uint64(29)
    return mixed


def value_hashes(column: Any) -> Hashes:
    """Return a hash of each value of an Arrow column."""
    values = (value.as_py() for value in _as_python_has(column))
    return np.array([_hash(value) for value in values], np.uint64)


def hashes_of(column: Values) -> Hashes:
    """Return a hash of each number or word."""
    if isinstance(column, NumberColumn):
        return np.ascontiguousarray(column.values).view(np.uint64)
    words = np.array([_hash(word) for word in column.words], np.uint64)
    return words[column.codes]


def _as_python_has(column: Any) -> Any:
    """Return a column without nanoseconds; as texts if it has dates that Python has not."""
    kind = column.type
    is_time = pa.types.is_timestamp(kind)
    if is_time and kind.unit == "ns":
        return pc.cast(column, pa.timestamp("us", kind.tz), safe=False)
    if is_time or pa.types.is_date(kind):
        try:
            pc.min_max(column).as_py()
        except (OverflowError, ValueError):
            utc = pc.cast(column, pa.timestamp(kind.unit)) if is_time else column
            return pc.cast(utc, pa.string())
    return column


def _hash(value: Any) -> int:
    if value is None:
        value = b"\0"
    content = value if isinstance(value, bytes) else str(value).encode(errors="backslashreplace")
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest())

"""Verify a dataset: digests, checksums, contents of records, index and counts."""

from __future__ import annotations

import contextlib
import hashlib
import os
from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from timonel.data.examples import decode_example
from timonel.data.index import INDEX_NAME, read_numbers
from timonel.data.inspection.profile import Progress, ticker
from timonel.data.manifest import (
    MANIFEST_NAME,
    Manifest,
    Shard,
    SideFile,
    checksum_of,
    read_manifest,
)
from timonel.data.records import CRC_BYTES, check_payload, mapped, members, spans
from timonel.data.schema import KEY_FEATURE, LABEL_FEATURE, SPLITS
from timonel.errors import CorruptError, NotFoundError
from timonel.storage import read_document, verify_file
from timonel.storage.location import Location

_LISTED = 20
"""Limit on listed problems of one file."""


@dataclass(frozen=True)
class Problem:
    """Problem of a dataset, in the file with this name."""

    file: str
    text: str


@dataclass(frozen=True)
class Verification:
    """Result of a verification.

    Args:
        uri: Location of the dataset.
        shards: Number of shards.
        records: Number of intact records.
        problems: The problems, at most 20 of each file.
        problem_count: Number of all problems.
    """

    uri: str
    shards: int
    records: int
    problems: tuple[Problem, ...]
    problem_count: int

    def check(self) -> None:
        """Raise an error if there are problems.

        Raises:
            CorruptError: There are; the message has the first one.
        """
        if not self.problems:
            return
        first = self.problems[0]
        what = "1 problem" if self.problem_count == 1 else f"{self.problem_count:,} problems"
        raise CorruptError(
            f"{what} in {self.uri}, the first: {first.file}: {first.text}",
            hint="copy the dataset there again, or convert the source again",
        )


def verify(
    dataset: str | os.PathLike[str],
    progress: Progress | None = None,
) -> Verification:
    """Verify every file of a dataset, and find all problems.

    Checks the checksum of the manifest and the digest of each file; then, of each record, the
    checksums, the features, label and key; the index; and the counts per split and label. Files of
    a dataset in a bucket are read from the bucket, not from the cache.

    Args:
        dataset: Folder of the dataset, or its URI in a bucket.
        progress: Called with the number of verified and of all records.

    Raises:
        NotFoundError: No dataset is there.
        CorruptError: The manifest cannot be read.
        InputError: A file or the bucket cannot be read now.
    """
    root = Location(dataset)
    manifest = _manifest(root)
    check = _Check(root, manifest, progress)
    check.manifest()
    numbers = check.sidecars()
    for position, shard in enumerate(manifest.shards):
        with check.file(shard) as path:
            if path is not None:
                check.records(shard, path, None if numbers is None else numbers[position])
    check.counts()
    return check.result()


def _manifest(root: Location) -> Manifest:
    file = root / MANIFEST_NAME
    try:
        return read_manifest(root.path if root.is_local else file.local.parent)
    except NotFoundError as error:
        if root.is_local:
            raise
        raise NotFoundError(
            f"no dataset at {root}: it has no {MANIFEST_NAME}", hint="check the URI"
        ) from error


class _Check:
    """Problems found so far, and counts of intact records."""

    def __init__(self, root: Location, manifest: Manifest, progress: Progress | None) -> None:
        self._root = root
        self._manifest = manifest
        self._tick = ticker(sum(manifest.counts.values()), progress)
        self._problems: list[Problem] = []
        self._by_file: Counter[str] = Counter()
        self._records: Counter[str] = Counter()
        self._labels: dict[str, Counter[str]] = {split: Counter() for split in SPLITS}
        self._numbers = range(len(self._manifest.labels))
        self._keys = array("q")
        self._features: frozenset[str] | None = None

    def manifest(self) -> None:
        """Check the manifest's checksum."""
        file = self._root / MANIFEST_NAME
        body = read_document(file.local, "dataset")
        if body.get("checksum") != checksum_of(body):
            self._add(MANIFEST_NAME, "was changed: its content differs from its checksum")

    def sidecars(self) -> list[npt.NDArray[np.int64]] | None:
        """Check the files beside the shards; return the numbers of an intact index."""
        numbers = None
        index, rejected = self._manifest.index, self._manifest.rejected
        if index is None:
            self._add(MANIFEST_NAME, "it names no index of the records")
        else:
            with self.file(index) as path, self._collecting(index.name, path):
                if path is not None:
                    numbers = read_numbers(path.parent, self._manifest)
        if rejected is not None:
            with self.file(rejected):
                pass
        return numbers

    @contextlib.contextmanager
    def file(self, file: Shard | SideFile) -> Iterator[Path | None]:
        """Check the digest of a file, and yield its path unless it is missing."""
        location = self._root / file.name  # keeps a temporary copy
        paths: list[Path] = []
        with self._collecting(file.name, location):
            paths.append(location.local)
        for path in paths:
            with self._collecting(file.name, path):
                verify_file(path, file.digest)
        yield next((path for path in paths if path.is_file()), None)

    def records(self, shard: Shard, path: Path, numbers: npt.NDArray[np.int64] | None) -> None:
        """Check the records of a shard, and its part of the index."""
        index: list[int] = []
        is_compressed = self._manifest.compression == "gzip"
        with self._collecting(shard.name, path), mapped(path) as content:
            parts = members(content[:], path) if is_compressed else ((0, content),)
            for start, part in parts:
                for span in spans(part, path):
                    framed = part[span.offset : span.offset + span.length + CRC_BYTES]
                    index += [start] if is_compressed else []
                    index.append(span.offset + len(framed))
                    with self._collecting(shard.name, path):
                        self._record(shard, check_payload(framed, span, path))
                    self._tick(None)
            if numbers is not None and index != numbers.ravel().tolist():
                self._add(INDEX_NAME, f"wrong positions of the records of {shard.name}")

    def _record(self, shard: Shard, payload: bytes) -> None:
        features = decode_example(payload)
        key = features.get(KEY_FEATURE)
        if not key or not isinstance(key[0], bytes):
            raise CorruptError("a record has no key")
        name = key[0].decode(errors="replace")
        self._keys.append(_hash(key[0]))
        if self._features is not None and self._features != features.keys():
            raise CorruptError(f"the record {name} has other features than those before it")
        self._features = frozenset(features)
        numbers = features.get(LABEL_FEATURE, [])
        if len(numbers) != 1 and self._manifest.task != "multilabel":
            raise CorruptError(f"the record {name} has {len(numbers)} labels instead of 1")
        if self._manifest.labels:
            unknown = [n for n in numbers if n not in self._numbers]
            if unknown:
                raise CorruptError(
                    f"the record {name} has the label {unknown[0]}, which is unknown"
                )
            self._labels[shard.split].update(self._manifest.labels[n] for n in set(numbers))
        self._records[shard.name] += 1

    def counts(self) -> None:
        """Compare counts of records with the manifest."""
        for shard in self._manifest.shards:
            self._compare(shard.name, "records", self._records[shard.name], shard.records)
        for split, expected in self._manifest.counts.items():
            shards = self._manifest.of_split(split)
            found = sum(self._records[shard.name] for shard in shards)
            self._compare(MANIFEST_NAME, f"records of {split}", found, expected)
        for split, labels in self._manifest.label_counts.items():
            for label, count in labels.items():
                found = self._labels[split][label]
                self._compare(MANIFEST_NAME, f"records of {split} with label {label}", found, count)
        copies = len(self._keys) - len(np.unique(np.array(self._keys, np.int64)))
        if copies:
            self._add(MANIFEST_NAME, f"{copies:,} records have the key of another record")

    def result(self) -> Verification:
        """Return what was found."""
        return Verification(
            self._root.uri,
            len(self._manifest.shards),
            self._records.total(),
            tuple(self._problems),
            self._by_file.total(),
        )

    def _compare(self, file: str, what: str, found: int, expected: int) -> None:
        if found != expected:
            self._add(file, f"{found:,} intact {what} instead of {expected:,}")

    @contextlib.contextmanager
    def _collecting(self, name: str, path: Path | Location | None) -> Iterator[None]:
        """Add an error of the block to the problems."""
        try:
            yield
        except NotFoundError:
            self._add(name, "is missing")
        except CorruptError as error:
            self._add(name, error.message.removeprefix(str(path)).strip())
        except OSError as error:
            self._add(name, f"cannot be read: {error.strerror or error}")

    def _add(self, file: str, text: str) -> None:
        self._by_file[file] += 1
        if self._by_file[file] <= _LISTED:
            self._problems.append(Problem(file, text))


def _hash(key: bytes) -> int:
    digest = hashlib.blake2b(key, digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)

"""Converted dataset: a folder with shards and a manifest, read without TensorFlow."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from timonel.data.examples import features_of
from timonel.data.manifest import Manifest, read_manifest
from timonel.data.records import read_records
from timonel.data.schema import KEY_FEATURE, SPLITS, Split, Task
from timonel.errors import CorruptError, SpecError
from timonel.storage import is_local, local_path, normalise, verify_file
from timonel.tracking import Artifact

if TYPE_CHECKING:
    from timonel.data.split_records import SplitRecords


@dataclass(frozen=True, repr=False)
class Dataset:
    """Converted dataset. Immutable and thread-safe.

    Args:
        uri: Its location: an absolute path, or the URI of a folder in a bucket.
        manifest: Its manifest.
        cached: Of a dataset in a bucket, the local folder with its files.
    """

    uri: str
    manifest: Manifest
    cached: Path | None = None

    @classmethod
    def open(cls, uri: str | os.PathLike[str]) -> Self:
        """Read the manifest of the dataset at ``uri``, but no records.

        A dataset in a bucket is downloaded to the user's cache folder, once.

        Raises:
            NotFoundError: No dataset is at ``uri``.
            CorruptError: The manifest is invalid.
            FormatError: The manifest's format is not supported by this release.
        """
        if not is_local(uri):
            # Most datasets are in folders.
            from timonel.data.remote import fetch_dataset  # noqa: PLC0415

            cached = fetch_dataset(normalise(uri))
            return cls(normalise(uri), read_manifest(cached), cached)
        folder = local_path(uri)
        return cls(str(folder), read_manifest(folder))

    def __repr__(self) -> str:
        splits = ", ".join(f"{split} {count:,}" for split, count in self.manifest.counts.items())
        labels = f", {len(self.labels)} labels" if self.labels else ""
        return f"Dataset({self.uri!r}: {splits}; {self.task}{labels}; {self.manifest.id})"

    @property
    def path(self) -> Path:
        """Local folder of the dataset's files."""
        return self.cached or Path(self.uri)

    @property
    def labels(self) -> tuple[str, ...]:
        """Class names in the order of their numbers; empty for a regression."""
        return self.manifest.labels

    @property
    def digest(self) -> str:
        """Digest of shards, schema and labels."""
        return self.manifest.digest

    @property
    def task(self) -> Task:
        """Learning task: classification or regression."""
        return self.manifest.task

    def count(self, split: str | None = None) -> int:
        """Return the number of records of a split, or of all splits."""
        if split is None:
            return sum(self.manifest.counts.values())
        return self.manifest.counts.get(check_split(split), 0)

    def shards(self, split: str) -> tuple[Path, ...]:
        """Return the files of a split, in order."""
        return tuple(self.path / s.name for s in self.manifest.of_split(check_split(split)))

    def payloads(self, split: str) -> Iterator[bytes]:
        """Yield the verified serialised tf.train.Examples of a split, in order.

        Raises:
            CorruptError: A record is damaged; the message names shard and byte.
        """
        for shard in self.shards(split):
            yield from read_records(shard, self.manifest.compression)

    def examples(self, split: str) -> Iterator[dict[str, Any]]:
        """Yield the verified features of each record of a split, in order.

        A feature with one value is a scalar, others are lists. Text is bytes, as in TensorFlow,
        except for the key.

        Raises:
            CorruptError: A record is damaged; the message names shard and byte.
        """
        return map(features_of, self.payloads(split))

    def records(self, split: str) -> SplitRecords:
        """Return the records of a split for random access, as PyTorch and Grain need it.

        ``len(records)`` is their number; ``records[i]`` has the features of record i, in the order
        and the form of `examples`. Only the index is read at once.

        Raises:
            CorruptError: The index is damaged, or a shard is missing.
        """
        # NumPy is not needed elsewhere in this module.
        from timonel.data.split_records import SplitRecords  # noqa: PLC0415

        return SplitRecords(self.path, self.manifest, check_split(split))

    def keys(self, split: str) -> list[str]:
        """Return the record keys of a split, in evaluation order."""
        return [example[KEY_FEATURE] for example in self.examples(split)]

    def verify(self) -> None:
        """Check every file against its digest in the manifest.

        Raises:
            CorruptError: A file differs from its digest or is missing.
        """
        for file in self.manifest.files:
            verify_file(self.path / file.name, file.digest)

    def check_sizes(self) -> None:
        """Check that every shard exists with its recorded size, without reading it.

        Raises:
            CorruptError: A shard is missing or has another size.
        """
        for shard in self.manifest.shards:
            path = self.path / shard.name
            try:
                size = path.stat().st_size
            except OSError as error:
                raise _damaged(path, f"cannot be read: {error.strerror or error}") from error
            if size != shard.bytes:
                raise _damaged(path, f"has {size} bytes instead of {shard.bytes}")

    def artifact(self) -> Artifact:
        """Return the dataset as an artifact for run records."""
        metadata = {"records": self.count(), "task": self.task, "labels": len(self.labels)}
        name = self.uri.rpartition("/")[2]
        return Artifact("dataset", self.uri, self.digest, name, metadata)


def _damaged(path: Path, problem: str) -> CorruptError:
    return CorruptError(
        f"the shard {path} {problem}",
        hint="the file was changed or truncated: convert the source again",
    )


def check_split(split: str) -> Split:
    """Return ``split`` as a validated split name."""
    for known in SPLITS:
        if split == known:
            return known
    raise SpecError(f"expected one of the splits {', '.join(SPLITS)}, got {split!r}")

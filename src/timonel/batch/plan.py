"""Plan a batch prediction: the shards of its input, and what a worker must know of the job."""

from __future__ import annotations

import hashlib
import itertools
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal

from timonel.batch.inputs import InputFile, InputFormat, local_copy
from timonel.batch.tables import read_csv
from timonel.data.records import FRAME_BYTES
from timonel.data.sources.arrowfile import open_parquet
from timonel.data.sources.recordfiles import RecordFile
from timonel.data.sources.textfile import open_lines
from timonel.storage.location import Location

OutputFormat = Literal["parquet", "jsonl", "csv", "tfrecord"]
RECORD = ""
"""Column name of a TFRecord's whole payload."""

_SHARD_BYTES = 16 << 20
_SHARD_IMAGES = 512
_PARQUET_ROWS = 1 << 16


@dataclass(frozen=True)
class PartPlan:
    """A part of the input, predicted and written as a whole.

    Args:
        name: Name of the shard, and of the file with its predictions.
        uri: The file; empty for images.
        modified: Number that changes when the file does.
        first: Number of the first row in the file.
        offset: Byte of the first row (JSON lines, TFRecord), or its row group (Parquet).
    """

    name: str
    format: InputFormat
    records: int
    uri: str = ""
    modified: int = 0
    key: str = ""
    first: int = 0
    offset: int = 0
    images: tuple[tuple[str, str], ...] = ()

    @property
    def location(self) -> Location:
        """The file."""
        return local_copy(self.uri, self.modified)

    def keys(self, start: int, count: int) -> list[str]:
        """Return the keys of rows, counted from the start of the shard."""
        first = self.first + start + 1
        return [f"{self.key}#{number}" for number in range(first, first + count)]


@dataclass(frozen=True)
class PredictionSpec:
    """A batch prediction as plain values, for workers on any machine that sees the files.

    Args:
        identity: Digest of the version, and the runtime that computes it.
        columns: Column of the input by name of the model's input.
        key: Column with the keys; None for the default keys.
        images: Inputs of the model that are encoded images.
        dates: Inputs of the model that are texts of dates of a dataset.
        labels: Class names of a dataset, whose true labels are written; empty for a regression;
            None without a dataset.
        raw: Whether texts that look like formulas are written to CSV as they are.
    """

    model: str
    version: int
    path: str
    identity: str
    signature: str
    batch_size: int
    format: OutputFormat
    columns: Mapping[str, str]
    key: str | None = None
    keep: tuple[str, ...] = ()
    images: tuple[str, ...] = ()
    dates: tuple[str, ...] = ()
    labels: tuple[str, ...] | None = None
    allow_ops: tuple[str, ...] = ()
    op_libraries: tuple[str, ...] = ()
    allow_http: bool = False
    allow_private: bool = False
    raw: bool = False


def plan_shards(
    files: Sequence[InputFile], ending: OutputFormat, *, has_images: bool = False
) -> list[PartPlan]:
    """Cut the input into shards, independent of machine and runner.

    Args:
        has_images: Rows may name images, so that shards have few rows.
    """
    most = _SHARD_IMAGES if has_images else sys.maxsize
    if files[0].format == "images":
        found = list(_image_shards(files))
    else:
        found = [shard for file in files for shard in _CUTS[file.format](file, most)]
    return [replace(shard, name=f"{number:05d}.{ending}") for number, shard in enumerate(found)]


def digest_of(files: Sequence[InputFile], job: PredictionSpec) -> str:
    """Return the digest of all that determines the predictions; not of the files' content."""
    sha = hashlib.sha256(json.dumps(asdict(job), sort_keys=True).encode())
    for file in files:
        sha.update(json.dumps([file.key, file.uri, file.size, file.modified]).encode())
    return sha.hexdigest()


def _image_shards(files: Sequence[InputFile]) -> Iterator[PartPlan]:
    images: list[tuple[str, str]] = []
    size = 0
    for file in files:
        images.append((file.key, file.uri))
        size += file.size
        if len(images) == _SHARD_IMAGES or size >= 4 * _SHARD_BYTES:
            yield PartPlan("", "images", len(images), images=tuple(images))
            images, size = [], 0
    if images:
        yield PartPlan("", "images", len(images), images=tuple(images))


def _shard(file: InputFile, first: int, offset: int, records: int) -> PartPlan:
    return PartPlan("", file.format, records, file.uri, file.modified, file.key, first, offset)


def _csv_shards(file: InputFile, most: int) -> Iterator[PartPlan]:
    rows = len(read_csv(file.uri, file.modified))
    total = max(1, min(rows, file.size // _SHARD_BYTES), -(-rows // most))
    for start, end in itertools.pairwise(rows * index // total for index in range(total + 1)):
        if end > start:
            yield _shard(file, start, 0, end - start)


def _line_shards(file: InputFile, most: int) -> Iterator[PartPlan]:
    with open_lines(file.location) as lines:
        sizes = ((len(line), bool(line.strip())) for line in lines)
        yield from _byte_shards(file, sizes, None if file.is_compressed else most)


def _record_shards(file: InputFile, most: int) -> Iterator[PartPlan]:
    records = RecordFile(file.location)
    sizes = ((FRAME_BYTES + span.length, True) for span in records.spans())
    yield from _byte_shards(file, sizes, None if records.is_compressed else most)


def _byte_shards(
    file: InputFile, sizes: Iterator[tuple[int, bool]], most: int | None
) -> Iterator[PartPlan]:
    """Cut a file after 16 MiB each.

    Args:
        sizes: Size of each line or record, and whether it is a row.
        most: Limit of rows; None for one shard, because a compressed file has no random access.
    """
    first = offset = position = count = 0
    for size, is_row in sizes:
        position += size
        count += is_row
        if most and count and (position - offset >= _SHARD_BYTES or count >= most):
            yield _shard(file, first, offset, count)
            first, offset, count = first + count, position, 0
    if count:
        yield _shard(file, first, offset, count)


def _parquet_shards(file: InputFile, most: int) -> Iterator[PartPlan]:
    with open_parquet(file.location) as content:
        groups = content.metadata
        counts = [groups.row_group(index).num_rows for index in range(groups.num_row_groups)]
    first = offset = count = 0
    for index, rows in enumerate(counts):
        count += rows
        if count >= min(_PARQUET_ROWS, most) or (count and index == len(counts) - 1):
            yield _shard(file, first, offset, count)
            first, offset, count = first + count, index + 1, 0


_CUTS: Mapping[str, Callable[[InputFile, int], Iterator[PartPlan]]] = {
    "csv": _csv_shards,
    "jsonl": _line_shards,
    "parquet": _parquet_shards,
    "tfrecord": _record_shards,
}

"""The layout of TFRecorder: pixels in base64 with their size, one file or more per split.

``<folder>/train-00000-of-00001.tfrecord.gz`` and so on, with the features

image            pixels in rows from the top, 8 bits per channel, in URL-safe base64
image_channels   1 or 3
image_height, image_width
image_name       the image's URI
label            number of the class, the most frequent one in the training split first
split            TRAIN, VALIDATION or TEST
"""

from __future__ import annotations

import contextlib
import gzip
import itertools
import logging
import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from timonel.data.examples import Feature, encode_example
from timonel.data.manifest import Rejected
from timonel.data.records import frame
from timonel.data.rejected import DEFAULT_LIMIT, too_many
from timonel.data.schema import IMAGE_FEATURE, SPLITS, Split
from timonel.data.shards import read_one
from timonel.data.sources.base import Entry, UnusableError
from timonel.data.sources.imagelist import ImageListSource
from timonel.data.sources.pixels import encode_pixels
from timonel.errors import DataError, SpecError
from timonel.processes.cores import usable_cores
from timonel.storage import join, publish_dir
from timonel.storage.atomic import temporary_prefix
from timonel.storage.location import Location
from timonel.storage.object_store import ObjectStore
from timonel.units import counted

_logger = logging.getLogger(__name__)
_BATCH = 64


def write_tfrecorder(
    location: Location,
    output: str | os.PathLike[str],
    *,
    name: str = "to-tfr",
    compression: str | None = "gzip",
    shards: int = 1,
    now: datetime | None = None,
) -> dict[str, Any]:
    """Write the images of a list in TFRecorder's layout, in a new folder named after the time.

    Rows without a split are left out, with a warning. Returns ``job_id``, ``metrics`` and
    ``tfrecord_dir``.
    """
    if compression not in {"gzip", None}:
        raise SpecError(f"expected the compression gzip or None, got {compression!r}")
    source = ImageListSource(location)
    scan = source.scan()
    entries = list(scan.entries)
    train = Counter(str(entry.label) for entry in entries if entry.split == "train")
    if not train:
        raise DataError(f"{location} has no row of the split TRAIN")
    if count := sum(entry.split is None for entry in entries):
        _logger.warning("left out %s of %s without a split", counted(count, "row"), location)
    labels = {
        label: index for index, label in enumerate(sorted(train, key=lambda x: (-train[x], x)))
    }
    job = f"tfrecorder-{now or datetime.now(UTC):%Y%m%d-%H%M%S}-{name}"
    target = join(output, job)
    writer = _Writer(source, labels, list(scan.rejected), len(entries) + len(scan.rejected))
    with _published(target) as folder:
        for split in SPLITS:
            chosen = [entry for entry in entries if entry.split == split]
            if chosen:
                writer.write(folder, split, chosen, shards, compressed=compression == "gzip")
    rows = len(entries) + len(scan.rejected) + len(scan.ignored)
    metrics = {"rows": rows, "good_images": writer.good, "bad_images": len(writer.rejected)}
    return {"job_id": "DirectRunner", "metrics": metrics, "tfrecord_dir": target}


class _Writer:
    """Writes splits, and counts the images."""

    def __init__(
        self,
        source: ImageListSource,
        labels: Mapping[str, int],
        rejected: list[Rejected],
        total: int,
    ) -> None:
        self.good = 0
        self.rejected = rejected
        self._source = source
        self._labels = labels
        self._total = total

    def write(
        self, folder: Path, split: Split, entries: Sequence[Entry], shards: int, *, compressed: bool
    ) -> None:
        """Write the records of a split."""
        ending = "tfrecord.gz" if compressed else "tfrecord"
        for shard in range(shards):
            path = folder / f"{split}-{shard:05d}-of-{shards:05d}.{ending}"
            with path.open("wb") as file, _compressed(file, compressed=compressed) as sink:
                for payload in self._payloads(split, entries[shard::shards]):
                    sink.writelines(frame(payload))

    def _payloads(self, split: Split, entries: Sequence[Entry]) -> Iterator[bytes]:
        left = iter(entries)
        with ThreadPoolExecutor(max(1, round(usable_cores()))) as pool:
            while batch := list(itertools.islice(left, _BATCH)):
                for found in pool.map(lambda entry: self._payload(split, entry), batch):
                    if isinstance(found, bytes):
                        self.good += 1
                        yield found
                        continue
                    self.rejected.append(found.rejected)
                    if len(self.rejected) > DEFAULT_LIMIT * self._total:
                        raise too_many(
                            self.rejected,
                            self.good,
                            self._total,
                            fault="records cannot be used",
                            why=f"above the limit of {DEFAULT_LIMIT:.2%}",
                            hint="repair or remove such records",
                        )

    def _payload(self, split: Split, entry: Entry) -> bytes | UnusableError:
        _, raw = read_one(self._source, entry)
        if isinstance(raw, UnusableError):
            return raw
        content = raw.features[IMAGE_FEATURE]
        features: dict[str, Feature] = {
            **encode_pixels(content),  # type: ignore[arg-type] # the bytes of a file
            "image_name": entry.key,
            "label": self._labels.get(str(entry.label), -1),
            "split": split.upper(),
        }
        return encode_example(features)


def _compressed(file: BinaryIO, *, compressed: bool) -> contextlib.AbstractContextManager[Any]:
    if not compressed:
        return contextlib.nullcontext(file)
    return gzip.GzipFile("", "wb", fileobj=file, mtime=0)


@contextlib.contextmanager
def _published(target: str) -> Iterator[Path]:
    """Yield a folder whose files appear at ``target`` if the block succeeds."""
    location = Location(target)
    if location.is_local:
        with publish_dir(location.path) as folder:
            yield folder
        return
    with tempfile.TemporaryDirectory(prefix=temporary_prefix()) as folder:
        yield Path(folder)
        ObjectStore(target).upload({path.name: path for path in Path(folder).iterdir()})

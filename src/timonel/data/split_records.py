"""Random access to the records of a split, without TensorFlow."""

from __future__ import annotations

import operator
import os
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np

from timonel.data.examples import features_of
from timonel.data.index import read_positions
from timonel.data.manifest import Manifest
from timonel.data.records import (
    FRAME_BYTES,
    HEADER_BYTES,
    Span,
    TooManyOpenFilesError,
    check_payload,
    members,
    unreadable_shard,
)
from timonel.data.schema import Split
from timonel.storage.regular_files import regular

_MAX_OPEN_FILES = 64
"""Of the 1,024 that most systems allow for all; shards beyond are opened for each record."""


class SplitRecords(Sequence[dict[str, Any]]):
    """Records of a split, read by index in the order of `Dataset.examples`.

    Thread-safe: positioned reads move no file pointer. Pickles as its location, so that data
    loaders can send it to their processes.
    """

    def __init__(self, folder: Path, manifest: Manifest, split: Split) -> None:
        self._of = (folder, manifest, split)
        self._paths = [folder / shard.name for shard in manifest.of_split(split)]
        self._is_compressed = manifest.compression == "gzip"
        positions = read_positions(folder, manifest, split)
        self._shard = np.repeat(np.arange(len(self._paths)), [len(part) for part in positions])
        self._positions = np.concatenate(positions) if positions else np.empty((0, 4), np.int64)
        self._files: list[int] = []
        # Not at exit, when TensorFlow's threads may still read.
        weakref.finalize(self, _close, self._files).atexit = False
        for path in self._paths[:_MAX_OPEN_FILES]:
            try:
                self._files.append(_open(path))
            except TooManyOpenFilesError:
                break

    def __reduce__(self) -> Any:
        return SplitRecords, self._of

    def __len__(self) -> int:
        return len(self._shard)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        return features_of(self.payload(index))

    def payload(self, index: SupportsIndex) -> bytes:
        """Return the verified serialised tf.train.Example of a record."""
        number = operator.index(index)
        if not -len(self) <= number < len(self):
            raise IndexError(f"expected an index below {len(self)}, got {number}")
        shard = int(self._shard[number])
        path = self._paths[shard]
        start, stop, offset, length = map(int, self._positions[number])
        content = self._read(shard, stop - start, start)
        if self._is_compressed:
            content = b"".join(part for _, part in members(content, path))
        framed = content[offset : offset + length + FRAME_BYTES - HEADER_BYTES]
        return check_payload(framed, Span(start + offset, length), path)

    def _read(self, shard: int, count: int, start: int) -> bytes:
        if shard < len(self._files):
            return os.pread(self._files[shard], count, start)
        file = _open(self._paths[shard])
        try:
            return os.pread(file, count, start)
        finally:
            os.close(file)


def _open(path: Path) -> int:
    try:
        return regular(path)
    except OSError as error:
        raise unreadable_shard(path, error) from error


def _close(files: list[int]) -> None:
    for file in files:
        os.close(file)

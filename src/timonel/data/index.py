"""Index of a dataset: the position of every record, so that readers open shards without scanning.

The file ``records.index`` has, for each record in the order of the manifest's shards, the offset
in bytes at which the record ends in its shard. In compressed shards, it has two numbers: the
offset at which the record's gzip member starts in the shard, and the offset at which the record
ends in the uncompressed member. Numbers are little-endian uint64.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from timonel.data.manifest import Manifest, SideFile
from timonel.data.records import FRAME_BYTES, HEADER_BYTES
from timonel.errors import CorruptError
from timonel.storage.digests import digest_bytes
from timonel.storage.regular_files import open_regular

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

INDEX_NAME = "records.index"
_NUMBER_BYTES = 8


def write_index(folder: Path, parts: Iterable[Sequence[int]]) -> SideFile:
    """Write the index of a dataset from those of its shards, in order."""
    sha, size = hashlib.sha256(), 0
    with (folder / INDEX_NAME).open("wb") as file:
        for part in parts:
            content = struct.pack(f"<{len(part)}Q", *part)
            sha.update(content)
            size += file.write(content)
    return SideFile(name=INDEX_NAME, bytes=size, digest=f"sha256:{sha.hexdigest()}")


def read_positions(folder: Path, manifest: Manifest, split: str) -> list[npt.NDArray[np.int64]]:
    """Return the positions of each record of a split, for each of its shards [records, 4].

    They are start and end of the bytes to read, in the shard; then offset and length of the
    payload, in these bytes after decompression.
    """
    parts = zip(manifest.shards, read_numbers(folder, manifest), strict=True)
    return [_positions(part, shard.bytes) for shard, part in parts if shard.split == split]


def read_numbers(folder: Path, manifest: Manifest) -> list[npt.NDArray[np.int64]]:
    """Return the numbers of the index for each shard: [records, 1], or 2 if compressed."""
    import numpy as np  # noqa: PLC0415 - conversions of images do not need it

    if manifest.index is None:
        raise _damaged(folder / INDEX_NAME, "is missing")
    path = folder / manifest.index.name
    try:
        with open_regular(path) as file:
            content = file.read()
    except OSError as error:
        raise _damaged(path, f"cannot be read: {error.strerror or error}") from error
    records = [shard.records for shard in manifest.shards]
    width = 2 if manifest.compression == "gzip" else 1
    expected = _NUMBER_BYTES * width * sum(records)
    if len(content) != expected or digest_bytes(content) != manifest.index.digest:
        raise _damaged(path, "was changed or truncated")
    numbers = np.frombuffer(content, "<i8").astype(np.int64).reshape(-1, width)
    return np.split(numbers, np.cumsum(records)[:-1])


def _positions(numbers: npt.NDArray[np.int64], size: int) -> npt.NDArray[np.int64]:
    """Return the positions of a shard's records from its part of the index."""
    import numpy as np  # noqa: PLC0415 - as above

    ends = numbers[:, -1]
    # Without compression, each record is a member that starts where the last one ends.
    is_compressed = numbers.shape[1] == 2
    before = np.concatenate([[0], ends[:-1]])
    members = numbers[:, 0] if is_compressed else before
    is_first = np.concatenate([[True], members[1:] != members[:-1]])
    stops = np.append(members[is_first], size)[np.cumsum(is_first)]
    starts = np.where(is_first, 0, before)
    lengths = ends - (starts if is_compressed else before) - FRAME_BYTES
    return np.stack([members, stops, starts + HEADER_BYTES, lengths], axis=1)


def _damaged(path: Path, problem: str) -> CorruptError:
    return CorruptError(f"the index {path} {problem}", hint="convert the source again")

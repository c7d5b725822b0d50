"""Index of a dataset: the position of every record, so that readers open shards without scanning.

The file ``records.index`` has, for each record in the order of the manifest's shards, the offset
in bytes at which the record ends in its shard: little-endian uint64.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from timonel.data.manifest import Manifest, Sidecar
from timonel.errors import CorruptError
from timonel.storage.digests import digest_bytes

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

INDEX_NAME = "records.index"
_ENTRY_BYTES = 8


def write_index(folder: Path, parts: Iterable[Path]) -> Sidecar:
    """Join the indexes of shards, in order, to that of their dataset.

    Raises:
        OSError: The file cannot be written.
    """
    sha, size = hashlib.sha256(), 0
    with (folder / INDEX_NAME).open("wb") as file:
        for part in parts:
            content = part.read_bytes()
            sha.update(content)
            size += file.write(content)
    return Sidecar(name=INDEX_NAME, bytes=size, digest=f"sha256:{sha.hexdigest()}")


def read_ends(folder: Path, manifest: Manifest) -> list[npt.NDArray[np.int64]]:
    """Return the end offsets [records] of each shard's records, in the order of the shards.

    Raises:
        CorruptError: The index is missing or differs from its digest.
    """
    import numpy as np  # noqa: PLC0415 - conversions of images do not need it

    index = manifest.index
    if index is None:
        raise ValueError("a dataset without an index")
    path = folder / index.name
    try:
        content = path.read_bytes()
    except OSError as error:
        raise _damaged(path, f"cannot be read: {error.strerror or error}") from error
    records = [shard.records for shard in manifest.shards]
    if len(content) != _ENTRY_BYTES * sum(records) or digest_bytes(content) != index.digest:
        raise _damaged(path, "was changed or truncated")
    ends = np.frombuffer(content, "<i8").astype(np.int64, copy=False)
    return np.split(ends, np.cumsum(records)[:-1])


def _damaged(path: Path, problem: str) -> CorruptError:
    return CorruptError(f"the index {path} {problem}", hint="convert the source again")

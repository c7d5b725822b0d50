"""Reading what W&B keeps of a run offline: records of its own format in a LevelDB log.

W&B's releases up to 0.2x read these files in Python; later ones in Go only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_BLOCK = 32768
_FILE_HEADER = 7
_CHUNK_HEADER = 7
_FULL, _FIRST, _LAST = 1, 2, 4


def records(path: Path) -> Iterator[Any]:
    """Yield the records of a ``.wandb`` file, as W&B's own messages."""
    from wandb.proto import wandb_internal_pb2

    for body in _bodies(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(body)
        yield record


def _bodies(content: bytes) -> Iterator[bytes]:
    if not content:
        return
    assert content[:4] == b":W&B"
    at, parts = _FILE_HEADER, b""
    while at + _CHUNK_HEADER <= len(content):
        left = _BLOCK - at % _BLOCK
        if left < _CHUNK_HEADER:
            at += left
            continue
        size, kind = int.from_bytes(content[at + 4 : at + 6], "little"), content[at + 6]
        if kind == 0:
            return  # not written yet
        chunk = content[at + _CHUNK_HEADER : at + _CHUNK_HEADER + size]
        at += _CHUNK_HEADER + size
        parts = chunk if kind in {_FULL, _FIRST} else parts + chunk
        if kind in {_FULL, _LAST}:
            yield parts


def values(items: Any) -> dict[str, Any]:
    """Return the keys and values of a record's items."""
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}

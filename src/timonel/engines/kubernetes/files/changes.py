"""Changes of files that the processes of a job share, and the index of those files.

Small content is part of a change, larger content an object named by its digest. The coordinator
numbers all changes: every process makes them in that order.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from timonel.errors import CorruptError
from timonel.storage.object_store import ObjectStore

INLINE_BYTES = 64 << 10
_DIGEST = re.compile(r"[0-9a-f]{64}")
_HINT = "all pods of a job need the same release of timonel"


@dataclass(frozen=True)
class Part:
    """A piece of a file's content.

    Attributes:
        size: Number of bytes.
        digest: Their SHA-256, hexadecimal.
        data: The bytes; None: they are an object, see `SharedContents`.
    """

    size: int
    digest: str
    data: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Change:
    """A change of one file.

    Attributes:
        name: The file, relative to the workspace.
        parts: Its content; None: the file is removed.
        mode: Its permissions.
        is_append: Whether the content is appended to the file, or replaces it.
        author: Process that made the change.
        serial: Number of the change among those of its author.
        version: Number of the change among all, which the coordinator assigns; 0: none yet.
    """

    name: str
    parts: tuple[Part, ...] | None
    mode: int = 0o644
    is_append: bool = False
    author: str = ""
    serial: int = 0
    version: int = 0


@dataclass
class Index:
    """All shared files of a job.

    Attributes:
        version: Number of the latest change.
        files: By name, the change that creates the file in an empty folder.
        lost: Ranges of numbers that earlier coordinators may have assigned and not saved: above
            the first, up to the second.
    """

    version: int = 0
    files: dict[str, Change] = field(default_factory=dict)
    lost: list[tuple[int, int]] = field(default_factory=list)

    def lacks(self, version: int) -> bool:
        """Whether an earlier coordinator has lost the change of a number."""
        return any(start < version <= end for start, end in self.lost)


class DamagedObjectError(CorruptError):
    """The bucket's object has other content than its digest says: no retry helps."""


class SharedContents:
    """Content of shared files in a job's folder of the bucket: ``jobs/<job>/files/<digest>``."""

    def __init__(self, store: ObjectStore, job_id: str) -> None:
        self.store = store
        self.folder = f"jobs/{job_id}/files"

    def name(self, digest: str) -> str:
        """Return the name of an object."""
        return f"{self.folder}/{digest}"

    def add(self, content: bytes) -> Part:
        """Return a part with this content; upload it unless it is small."""
        digest = hashlib.sha256(content).hexdigest()
        if len(content) <= INLINE_BYTES:
            return Part(len(content), digest, content)
        self.store.write(self.name(digest), content)
        return Part(len(content), digest)

    def read(self, part: Part) -> bytes:
        """Return the content of a part."""
        if part.data is not None:
            return part.data
        content = self.store.read(self.name(part.digest))
        if hashlib.sha256(content).hexdigest() != part.digest:
            raise damaged(part)
        return content


def damaged(part: Part) -> DamagedObjectError:
    """Return the error for an object with other content than its digest says."""
    return DamagedObjectError(
        f"the object {part.digest} of the job's files is damaged",
        hint="submit the job again under another name",
    )


def encode_change(change: Change) -> dict[str, Any]:
    """Return a change as JSON."""
    return {
        "name": change.name,
        "parts": None if change.parts is None else [_encode_part(part) for part in change.parts],
        "mode": change.mode,
        "is_append": change.is_append,
        "author": change.author,
        "serial": change.serial,
        "version": change.version,
    }


def decode_change(body: Mapping[str, Any]) -> Change:
    """Return a change from JSON."""
    try:
        parts = body["parts"]
        return Change(
            name=str(body["name"]),
            parts=None if parts is None else tuple(map(_decode_part, parts)),
            mode=int(body["mode"]) & 0o777,
            is_append=bool(body["is_append"]),
            author=str(body["author"]),
            serial=int(body["serial"]),
            version=int(body["version"]),
        )
    except (AttributeError, KeyError, TypeError, ValueError, binascii.Error) as error:
        raise CorruptError(f"invalid change of a file: {error!r}", hint=_HINT) from error


def encode_index(index: Index) -> dict[str, Any]:
    """Return an index as JSON."""
    files = [encode_change(change) for change in index.files.values()]
    return {"version": index.version, "files": files, "lost": index.lost}


def decode_index(body: Mapping[str, Any]) -> Index:
    """Return an index from JSON."""
    try:
        files = map(decode_change, body["files"])
        lost = [(int(start), int(end)) for start, end in body["lost"]]
        return Index(int(body["version"]), {change.name: change for change in files}, lost)
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptError(f"invalid index of files: {error!r}", hint=_HINT) from error


def _encode_part(part: Part) -> dict[str, Any]:
    data = None if part.data is None else base64.b64encode(part.data).decode()
    return {"size": part.size, "digest": part.digest, "data": data}


def _decode_part(body: Mapping[str, Any]) -> Part:
    size, digest, text = int(body["size"]), str(body["digest"]), body["data"]
    if not _DIGEST.fullmatch(digest):
        raise ValueError(f"not a digest: {digest}")
    if text is None:
        return Part(size, digest)
    data = base64.b64decode(text, validate=True)
    if len(data) != size or hashlib.sha256(data).hexdigest() != digest:
        raise ValueError(f"content of {digest} is damaged")
    return Part(size, digest, data)

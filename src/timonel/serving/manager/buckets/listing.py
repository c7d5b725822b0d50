"""Versions in a bucket as listed, and the errors of buckets."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from timonel.errors import (
    CorruptError,
    MissingExtraError,
    NotFoundError,
    SpecError,
    TimonelError,
)
from timonel.serving.manager.sources import version_number
from timonel.serving.status import Code, StatusError
from timonel.storage.aliases import FOLDER as ALIASES
from timonel.storage.blobs import Blob
from timonel.storage.bucket_errors import AccessDeniedError
from timonel.storage.content_cache import CacheError
from timonel.storage.object_store import ObjectStore

# Publishers write one of these last.
_MODELS = frozenset({"saved_model.pb", "saved_model.pbtxt", "model.tflite", "model.py"})
_SHARD = re.compile(r"(variables/variables)\.data-(\d{5})-of-(\d{5})")
_CODES: Sequence[tuple[type[TimonelError], Code]] = (
    (NotFoundError, Code.NOT_FOUND),
    (AccessDeniedError, Code.PERMISSION_DENIED),
    (SpecError, Code.FAILED_PRECONDITION),
    (MissingExtraError, Code.FAILED_PRECONDITION),
    (CorruptError, Code.ABORTED),
    (CacheError, Code.RESOURCE_EXHAUSTED),
    (TimonelError, Code.UNAVAILABLE),
)


class BucketError(StatusError):
    """An error of a bucket or its cache, as opposed to an error of the model."""


@contextmanager
def bucket_errors() -> Iterator[None]:
    """Translate the errors of a block."""
    try:
        yield
    except TimonelError as error:
        code = next(code for kind, code in _CODES if isinstance(error, kind))
        # Other hints are for commands, which can be repeated.
        text = str(error) if code is Code.FAILED_PRECONDITION else error.message
        raise BucketError(code, f"{text[:1].upper()}{text[1:]}") from error


def list_versions(store: ObjectStore) -> tuple[dict[int, str], bool]:
    """Return the names of version folders by number, and whether the model has aliases."""
    with bucket_errors():
        folders, files = store.children()
    if not folders and not files:
        # Not the removal of all versions: buckets have no empty folders.
        raise BucketError(Code.NOT_FOUND, f"Cannot list {store.uri}: it is empty")
    numbered = ((version_number(name), name) for name in folders)
    versions = {number: name for number, name in numbered if number is not None}
    return versions, ALIASES in folders


def is_complete(blobs: Sequence[Blob]) -> bool:
    """Return whether a version has all shards that the names of its variables announce.

    An object appears when its upload ends, so a large one may lag minutes behind the others while
    nothing seems to change.
    """
    names = {blob.name for blob in blobs}
    shards = [match for name in names if (match := _SHARD.fullmatch(name))]
    expected = set()
    for match in shards:
        stem, count = match[1], int(match[3])
        expected |= {f"{stem}.data-{k:05}-of-{count:05}" for k in range(count)} | {f"{stem}.index"}
    is_sharded = bool(shards) or "variables/variables.index" not in names
    return bool(names & _MODELS) and expected <= names and is_sharded

"""Dataset manifest, stored as ``manifest.json`` in the dataset's folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationError

from timonel.data.schema import (
    ColumnRole,
    Compression,
    ImageCheck,
    Schema,
    Split,
    StoredValue,
    Task,
)
from timonel.errors import CorruptError, NotFoundError
from timonel.storage.blobs import is_file_name
from timonel.storage.digests import digest_bytes
from timonel.storage.documents import parse_document, read_document, write_document

MANIFEST_NAME = "manifest.json"
_KIND = "dataset"


def _plain(name: str) -> str:
    # A manifest from elsewhere must not lead to files outside of its dataset.
    if not is_file_name(name) or "/" in name:
        raise ValueError(f"{name!r} is not the name of a file")
    return name


FileName = Annotated[str, AfterValidator(_plain)]


class Shard(StoredValue):
    """File of records."""

    name: FileName
    split: Split
    records: int
    bytes: int
    digest: str


class SideFile(StoredValue):
    """File of the dataset beside its shards."""

    name: FileName
    bytes: int
    digest: str


class Rejected(StoredValue):
    """Unusable raw record."""

    key: str
    reason: str
    column: str = Field(default="", description="The column with a bad value, of a table.")
    value: str = Field(default="", description="The bad value, shortened.")
    hint: str = Field(default="", description="A cure.")


class Duplicate(StoredValue):
    """Group of identical records."""

    digest: str
    keys: tuple[str, ...]
    labels: tuple[str, ...] = Field(description="Distinct labels of the group.")


class SourceInfo(StoredValue):
    """Source of the records."""

    plugin: str
    uri: str
    digest: str
    files: int
    bytes: int
    check: ImageCheck | None = Field(
        default=None, description="How images were checked; none without images."
    )
    ignored: tuple[str, ...] = Field(
        default=(), description="The first files that are not records."
    )
    ignored_count: int = 0
    left_out: tuple[Rejected, ...] = Field(
        default=(), description="The first copies of held-out records, which are left out."
    )
    left_out_count: int = 0
    rejected: tuple[Rejected, ...] = Field(default=(), description="The first unusable records.")
    rejected_count: int = Field(
        default=0, description="Unusable records; they are listed in the file of rejected records."
    )
    duplicates: tuple[Duplicate, ...] = Field(
        default=(), description="The first groups of identical records, contradictory ones first."
    )
    duplicate_count: int = Field(default=0, description="Number of groups of identical records.")
    contradiction_count: int = Field(
        default=0, description="Number of groups with more than one label."
    )
    notes: tuple[str, ...] = Field(default=(), description="Notes on how the source was read.")
    warnings: tuple[str, ...] = Field(default=(), description="Possible misreadings.")


class Target(StoredValue):
    """Statistics of a regression label over the training split."""

    mean: float
    std: float
    minimum: float
    maximum: float


class Manifest(StoredValue):
    """Metadata of a dataset, available without reading its records."""

    id: str
    digest: str
    task: Task
    record_schema: Schema = Field(alias="schema")
    labels: tuple[str, ...] = Field(default=(), description="Class names, by number.")
    target: Target | None = Field(default=None, description="Statistics of a regression label.")
    counts: dict[Split, int]
    label_counts: dict[Split, dict[str, int]] = Field(default_factory=dict)
    shards: tuple[Shard, ...]
    compression: Compression = Field(default="none", description="Compression of the shards.")
    index: SideFile | None = Field(default=None, description="Positions of all records.")
    rejected: SideFile | None = Field(default=None, description="Unusable records, with reasons.")
    columns: tuple[ColumnRole, ...] = Field(
        default=(), description="All columns of the source, in order."
    )
    source: SourceInfo
    seed: int
    fractions: tuple[float, float, float] = Field(description="Fraction of each split.")
    given_splits: tuple[Split, ...] = Field(
        default=(), description="Splits assigned by the source, if any."
    )
    timonel_version: str
    run_id: str | None = None

    def of_split(self, split: Split) -> tuple[Shard, ...]:
        """Return the shards of one split, in order."""
        return tuple(shard for shard in self.shards if shard.split == split)

    @property
    def files(self) -> tuple[Shard | SideFile, ...]:
        """All files of the dataset besides the manifest."""
        sidecars = (file for file in (self.index, self.rejected) if file is not None)
        return (*self.shards, *sidecars)


def content_digest(body: Mapping[str, Any]) -> str:
    """Return the digest of a dataset's content.

    It covers the shards and what is needed to read them, but not the source or the run, so that
    the same content always has the same digest.
    """
    covered = {key: body[key] for key in ("task", "schema", "labels", "shards")}
    return digest_bytes(json.dumps(covered, sort_keys=True, ensure_ascii=False).encode())


def checksum_of(body: Mapping[str, Any]) -> str:
    """Return the digest of all that a manifest says, also of source and run."""
    covered = {key: body[key] for key in body if key not in {"kind", "format", "checksum"}}
    return digest_bytes(json.dumps(covered, sort_keys=True).encode())


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest of the dataset in ``folder``."""
    body = manifest.model_dump(mode="json", by_alias=True)
    write_document(folder / MANIFEST_NAME, _KIND, {**body, "checksum": checksum_of(body)})


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of the dataset in ``folder``."""
    path = folder / MANIFEST_NAME
    if not folder.exists():
        raise NotFoundError(
            f"no dataset at {folder}: the folder does not exist",
            hint="check the path, or create a dataset with 'timonel convert SOURCE DESTINATION'",
        )
    if folder.is_file():
        raise NotFoundError(
            f"no dataset at {folder}: it is a file",
            hint="name the folder; 'timonel data inspect' reads single TFRecord files, too",
        )
    if not path.is_file():
        raise NotFoundError(
            f"no dataset at {folder}: it has no {MANIFEST_NAME}",
            hint="create one with 'timonel convert SOURCE DESTINATION'",
        )
    return _validated(read_document(path, _KIND), str(path))


def parse_manifest(text: str, path: str) -> Manifest:
    """Return the manifest in a file's text."""
    return _validated(parse_document(text, _KIND, path), path)


def _validated(body: Mapping[str, Any], path: str) -> Manifest:
    try:
        return Manifest.model_validate(body)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise CorruptError(
            f"{path} is not a valid dataset manifest: {where}: {first['msg']}",
            hint="convert the source again",
        ) from error

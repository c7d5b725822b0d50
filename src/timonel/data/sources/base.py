"""Interface and registry of sources: locations of raw records with keys and labels.

A conversion scans the source once, divides the records into splits, then reads each record exactly
once, from several threads. It keeps the scanned entries on disk, so a scan that yields them one by
one needs little memory for any number of records.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from timonel.data.examples import Feature
from timonel.data.manifest import Rejected
from timonel.data.schema import ColumnRole, ColumnType, ImageCheck, Schema, Split, Task
from timonel.data.statistics import ImageFacts, Statistics, ValueFacts
from timonel.errors import DataError, InputError, NotFoundError, SpecError
from timonel.storage.location import Location


class UnusableError(DataError):
    """Unusable raw record, with a shortened value; a conversion leaves it out, up to a limit."""

    def __init__(
        self,
        key: str,
        reason: str,
        *,
        hint: str | None = None,
        column: str = "",
        value: str = "",
    ) -> None:
        super().__init__(
            f"{key}: {reason}",
            hint=hint or "repair or remove it",
        )
        self.key = key
        self.reason = reason
        self.rejected = Rejected(
            key=key, reason=reason, column=column, value=value, hint=hint or ""
        )


class SourceOptions(BaseModel):
    """User options of a source; each plug-in uses the ones that apply."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    label: str | None = Field(default=None, description="Name of the label column.")
    columns: Mapping[str, ColumnType] = Field(
        default_factory=dict, description="Column types that override the inferred ones."
    )
    task: Task | None = Field(default=None, description="Task that overrides the inferred one.")
    group_by: str | None = Field(
        default=None, description="Column whose equal values keep rows in one split."
    )
    labels: tuple[str, ...] = Field(
        default=(), description="Classes in the order of their numbers; others are errors."
    )
    vocabularies: Mapping[str, tuple[str, ...]] = Field(
        default_factory=dict, description="Words of columns, in the order of their numbers."
    )
    has_all_columns: bool = Field(
        default=False, description="Columns that have no given type are errors."
    )
    image_size: tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]] | None = Field(
        default=None, description="Height and width that scaled-down images still cover."
    )
    max_vocabulary: int = Field(
        default=1000, ge=1, description="Words of a category or text; rarer ones are unknown."
    )
    image_format: Literal["jpeg", "png", "webp"] | None = Field(
        default=None, description="Format of all images."
    )
    quality: Annotated[int, Field(ge=1, le=100)] | None = Field(
        default=None, description="Quality of JPEG and WebP images."
    )
    check: ImageCheck = Field(default="structure", description="How images are checked.")
    folders: Literal["auto", "labels", "splits"] = Field(
        default="auto", description="What the top-level folders name."
    )
    allow_http: bool = Field(default=False, description="Read listed images over plain http.")
    allow_private: bool = Field(
        default=False, description="Read listed images from loopback and private addresses."
    )
    delimiter: str | None = Field(default=None, description="Separator of values in a CSV file.")
    encoding: str | None = Field(default=None, description="Encoding of a text file.")
    column_names: tuple[str, ...] = Field(
        default=(), description="Column names of a CSV file without a header."
    )


@dataclass(frozen=True, slots=True)
class Entry:
    """Record that was found by a scan and not read yet.

    Args:
        key: Unique in the source; a path relative to it, or a row number.
        label: The class name, or the number to predict.
        size: Approximate size in bytes, for cutting shards.
        ref: Reference for the source to read the record; a JSON value.
        split: The split that the source assigns; None if it assigns none.
        group: Fingerprint of the content, equal for identical records, which stay in one split;
            None for a record that is a group of its own.
        split_group: Name of the records that the user wants in one split, instead of ``group``.
        modified: Time of the last change, in any unit; another one voids an interrupted
            conversion of the record.
    """

    key: str
    label: str | float
    size: int
    ref: Any = None
    split: Split | None = None
    group: str | None = None
    modified: int = 0
    split_group: str | None = None


@dataclass(frozen=True)
class Scan:
    """Result of scanning a source.

    Args:
        entries: The records, in any order. If it is an iterator, it may find records while it is
            consumed, and append to ``ignored`` and ``rejected``.
        task: Classification or regression, from the labels.
        ignored: Names of items that are not records.
        rejected: Unusable records.
        columns: How each column of a table is used.
        notes: Notes on how the source was read, one line each.
        warnings: Possible misreadings, one line each.
    """

    entries: Iterable[Entry]
    task: Task
    ignored: Sequence[str] = ()
    rejected: Sequence[Rejected] = ()
    columns: Sequence[ColumnRole] = ()
    notes: Sequence[str] = ()
    warnings: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Raw:
    """Record that was read and verified.

    Args:
        features: Features to store, besides key and label. Statistics count floats as numbers and
            text as words; NaN and empty text are missing values.
        image: Facts about the image, if the record is a file of one.
        facts: Facts about values by feature, for all but plain numbers and words.
    """

    features: Mapping[str, Feature]
    image: ImageFacts | None = None
    facts: Mapping[str, ValueFacts] = field(default_factory=dict)


@dataclass(frozen=True)
class RawFiles:
    """Files that records were read from, one each.

    Args:
        digest: Digest of a folder with just these files, named by the records' keys.
        count: Number of files.
        bytes: Their total size.
    """

    digest: str
    count: int
    bytes: int


@dataclass(frozen=True)
class Description:
    """Summary of all records read from a source.

    Args:
        schema: Schema of the records, with statistics of the training split.
        digest: Digest of names and bytes of the raw content.
        files: Number of raw files.
        bytes: Total size of the raw files.
    """

    schema: Schema
    digest: str
    files: int
    bytes: int


@dataclass
class Source(abc.ABC):
    """Source of raw records.

    ``read`` is called from several threads, other methods from one.
    """

    plugin: ClassVar[str]
    kind: ClassVar[str]
    """Kind for users to select: ``images`` or ``table``."""

    precedence: ClassVar[int] = 0
    """Priority among sources that recognise the same location; the highest wins."""

    location: Location
    options: SourceOptions = field(default_factory=SourceOptions)

    @classmethod
    @abc.abstractmethod
    def recognises(cls, location: Location, options: SourceOptions) -> bool:
        """Tell quickly whether ``location`` looks like a source of this class."""

    @property
    def parallel(self) -> bool:
        """Whether reading in several threads is faster."""
        return True

    @property
    def is_remote(self) -> bool:
        """Whether records are read over the network, so that more threads are faster."""
        return not self.location.is_local

    @property
    def folder(self) -> str | None:
        """Folder of the files that the scanned records name elsewhere on this machine."""
        return None

    @abc.abstractmethod
    def scan(self) -> Scan:
        """Find all records.

        Raises:
            DataError: The location contains no usable records; also while the entries are consumed.
        """

    def reopen(self) -> None:
        """Prepare ``read`` in another process than that of the scan; by default scan again."""
        for _ in self.scan().entries:
            pass

    @abc.abstractmethod
    def read(self, entry: Entry) -> Raw:
        """Read and verify one record. Thread-safe.

        Raises:
            UnusableError: The record cannot be used: something is wrong with it, so that every
                attempt fails.
            OSError: It cannot be read now. The conversion tries again, then fails.
        """

    @abc.abstractmethod
    def describe(self, statistics: Mapping[Split, Statistics], files: RawFiles) -> Description:
        """Summarise the records that were read.

        Args:
            statistics: Statistics of each split.
            files: The files of the records with an image.
        """

    def digest(self, entry: Entry) -> str | None:
        """Return the digest of a record's raw content; None if it cannot be read.

        Called for records of equal groups, to find identical ones. Thread-safe.
        """
        return entry.group


GROUP = "timonel.sources"


def installed_sources() -> dict[str, type[Source]]:
    """Return the classes of all installed sources by plug-in name, sorted."""
    found = sorted(entry_points(group=GROUP), key=lambda point: point.name)
    return {point.name: point.load() for point in found}


def choose_source(location: Location, options: SourceOptions, kind: str = "auto") -> type[Source]:
    """Return the source class for ``location``.

    Args:
        location: The folder, file or pattern.
        options: Options of the source.
        kind: ``images``, ``table``, a plug-in's name, or ``auto`` for the one with the highest
            precedence that recognises the location.

    Raises:
        NotFoundError: ``location`` does not exist.
        SpecError: No installed source has that kind.
        InputError: No installed source recognises the location.
    """
    if not location.exists():
        raise NotFoundError(
            f"no files match {location}"
            if location.is_pattern
            else f"no folder or file at {location}",
            hint="check the path" if location.is_local else "check the URI",
        )
    sources = installed_sources()
    if kind != "auto":
        sources = {name: source for name, source in sources.items() if kind in {name, source.kind}}
        if not sources:
            known = sorted({source.kind for source in installed_sources().values()})
            raise SpecError(
                f"expected one of the source kinds auto, {', '.join(known)}, got {kind!r}"
            )
    for source in sorted(sources.values(), key=lambda each: -each.precedence):
        if source.recognises(location, options):
            return source
    what = "folder" if location.is_dir() else "file"
    source_kind = "" if kind == "auto" else f" of kind {kind}"
    raise InputError(
        f"no installed source{source_kind} reads the {what} {location}",
        hint="use a folder with one folder of images per label, or a table: .csv, .tsv, .parquet, "
        ".jsonl or .tfrecord",
    )

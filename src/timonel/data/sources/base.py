"""What a source is: a place with raw records that have keys and labels.

A conversion scans the source once (which records there are, without reading them all into memory),
divides them, then reads each record exactly once, from several threads.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from timonel.data.examples import Feature
from timonel.data.schema import ColumnRole, ColumnType, Schema, Split, Task
from timonel.errors import DataError


class UnusableError(DataError):
    """One raw record cannot be used; a conversion may be told to skip it.

    Args:
        key: The record's key.
        reason: What was expected of it and what came.
    """

    def __init__(self, key: str, reason: str, *, hint: str | None = None) -> None:
        super().__init__(
            f"{key}: {reason}",
            hint=hint or "mend or remove it, or skip such records with --skip-bad",
        )
        self.key = key
        self.reason = reason


class SourceOptions(BaseModel):
    """What a user may say of a source; each plug-in uses what concerns it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    label: str | None = Field(default=None, description="The column that holds the label.")
    columns: Mapping[str, ColumnType] = Field(
        default_factory=dict, description="Types of columns, where the inferred one is wrong."
    )
    task: Task | None = Field(
        default=None, description="The task, where the inferred one is wrong."
    )
    skip_bad: bool = Field(
        default=False, description="Leave out what cannot be used, and count it."
    )
    folders: Literal["auto", "labels", "splits"] = Field(
        default="auto", description="What the folders at the top of a folder of images name."
    )


@dataclass(frozen=True, slots=True)
class Entry:
    """A record that was found and not read yet.

    Args:
        key: Unique in the source; a path relative to it, or a row's number.
        label: The class's name, or the number to predict.
        size: Bytes, about; shards are cut by it.
        ref: Whatever the source needs to read it.
        split: The split that the source assigns; None if it assigns none.
        group: The digest that identical records share; None for a record without duplicates.
    """

    key: str
    label: str | float
    size: int
    ref: Any = None
    split: Split | None = None
    group: str | None = None


@dataclass(frozen=True)
class Scan:
    """What was found in a source.

    Args:
        entries: The records, in the order of their keys.
        task: What the labels are good for.
        ignored: Names of things that are no records.
        skipped: Records that cannot be used: key and reason.
        columns: How each column of a table is used.
        notes: One line each on how the source was read, if that is not obvious.
        warnings: One line each on what may have been read wrongly.
    """

    entries: Sequence[Entry]
    task: Task
    ignored: Sequence[str] = ()
    skipped: Sequence[tuple[str, str]] = ()
    columns: Sequence[ColumnRole] = ()
    notes: Sequence[str] = ()
    warnings: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Raw:
    """A record that was read and verified.

    Args:
        features: What is stored, besides key and label.
        facts: Whatever the source wants back in `Source.describe`.
    """

    features: Mapping[str, Feature]
    facts: Any = None


@dataclass(frozen=True)
class Description:
    """What a source says of all records that were read.

    Args:
        schema: Their schema, with figures of the training split.
        digest: Of the raw content: names and bytes.
        files: Number of raw files.
        bytes: Their size.
    """

    schema: Schema
    digest: str
    files: int
    bytes: int


@dataclass
class Source(abc.ABC):
    """Raw records in one place. ``read`` is called from several threads, the rest from one."""

    plugin: ClassVar[str]
    kind: ClassVar[str]
    """What users ask for: ``images`` or ``table``."""

    parallel: ClassVar[bool] = True
    """Whether reading in several threads pays."""

    precedence: ClassVar[int] = 0
    """Of several sources that recognise a place, the one of the highest precedence reads it."""

    location: Path
    options: SourceOptions = field(default_factory=SourceOptions)

    @classmethod
    @abc.abstractmethod
    def recognises(cls, location: Path) -> bool:
        """Tell, at a glance, whether ``location`` looks like a source of this class."""

    @abc.abstractmethod
    def scan(self) -> Scan:
        """Find all records.

        Raises:
            DataError: The place holds no usable records.
            UnusableError: One cannot be used and ``options.skip_bad`` is false.
        """

    @abc.abstractmethod
    def read(self, entry: Entry) -> Raw:
        """Read and verify one record. Thread-safe.

        Raises:
            UnusableError: It cannot be used.
        """

    @abc.abstractmethod
    def describe(self, facts: Mapping[str, Any], train: Sequence[Entry]) -> Description:
        """Sum up what was read.

        Args:
            facts: Of every record that was read, by key.
            train: The records of the training split.
        """

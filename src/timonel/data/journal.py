"""Journal of a conversion: an unfinished dataset that survives the process.

    .tmp-convert-of-dataset-<name>/     beside the dataset
      lock                     held by the conversion
      records.db               what the scan found
      conversion.json          digest of the plan
      rejected.jsonl           unusable records, if there were too many
      plan/<shard>             records of a shard, one JSON array per line
      finished/<shard>.json    outcome of a shard, written after the shard itself
      content/                 the dataset's files

The outcomes belong to one plan: if the plan's digest changes, they are removed.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from timonel.data.manifest import Rejected, Shard
from timonel.data.schema import Split, StoredValue
from timonel.data.sources.base import Entry
from timonel.data.statistics import Statistics
from timonel.errors import TimonelError
from timonel.storage.atomic import ASIDE_PREFIX, unwritable, write_bytes
from timonel.storage.digests import digest_file
from timonel.storage.documents import read_document, write_document

CONTENT = "content"
_KIND, _OUTCOME = "conversion", "shard-outcome"
_NAME_BYTES = 200


@dataclass(frozen=True)
class ShardPlan:
    """One shard to write.

    Args:
        name: File name of the shard.
        split: Its split.
        records: Number of records to read for it.
    """

    name: str
    split: Split
    records: int


class ShardOutcome(StoredValue):
    """Result of writing one shard."""

    shard: Shard
    statistics: Statistics
    rejected: tuple[Rejected, ...] = Field(default=(), description="Unusable records.")
    files: tuple[tuple[str, str], ...] = Field(
        default=(), description="Key of each raw file, and its line in the digest of all files."
    )
    raw_bytes: int = Field(default=0, description="Total size of the raw files.")
    index: tuple[int, ...] = Field(description="Part of the index, see `timonel.data.index`.")


class Journal:
    """Folder of an unfinished conversion. Thread-safe for different shards.

    Args:
        root: The folder.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.content = root / CONTENT
        self.lock = root / "lock"
        self.database = root / "records.db"
        self.rejected = root / "rejected.jsonl"
        self._plan = root / "plan"
        self._finished = root / "finished"

    def begin(self, digest: str) -> None:
        """Keep the finished shards of the plan with this digest, and remove all others."""
        if self.digest != digest:
            for folder in (self.content, self._finished):
                shutil.rmtree(folder, ignore_errors=True)
        self.content.mkdir(exist_ok=True)
        self._finished.mkdir(exist_ok=True)
        write_document(self.root / "conversion.json", _KIND, {"plan": digest})

    def write_plan(self, plans: Iterable[ShardPlan], entries: Iterator[Entry]) -> str:
        """Write the records of each shard, taken from all entries; return their digest.

        Raises:
            InputError: The folder cannot be written.
        """
        shutil.rmtree(self._plan, ignore_errors=True)
        sha = hashlib.sha256()
        try:
            self._plan.mkdir()
            for plan in plans:
                sha.update(f"{plan.name}\n".encode())
                with (self._plan / plan.name).open("wb") as file:
                    for entry in itertools.islice(entries, plan.records):
                        line = _line(entry)
                        sha.update(line)
                        file.write(line)
        except OSError as error:
            raise unwritable(self._plan, error) from error
        return sha.hexdigest()

    @property
    def digest(self) -> str:
        """Digest of the plan; empty if there is none."""
        try:
            return str(read_document(self.root / "conversion.json", _KIND)["plan"])
        except (TimonelError, KeyError):
            return ""

    def plan_file(self, name: str) -> Path:
        """Return the file with the records of a shard."""
        return self._plan / name

    def outcome_file(self, name: str) -> Path:
        """Return the file with the outcome of a shard."""
        return self._finished / f"{name}.json"

    def receive(self, name: str, plan: bytes) -> None:
        """Begin a journal elsewhere, for one shard whose records are in ``plan``.

        Raises:
            InputError: The folder cannot be written.
        """
        write_bytes(self.plan_file(name), plan)
        for folder in (self.content, self._finished):
            folder.mkdir(exist_ok=True)

    def entries(self, plan: ShardPlan) -> Iterator[Entry]:
        """Yield the records of a shard, in order."""
        with self.plan_file(plan.name).open("rb") as file:
            for line in file:
                key, label, size, ref, modified = json.loads(line)
                yield Entry(key, label, size, ref, plan.split, modified=modified)

    def is_finished(self, plan: ShardPlan) -> bool:
        """Return whether a shard was written, and still has its digest."""
        try:
            shard = self.outcome(plan.name).shard
        except (TimonelError, ValueError):
            return False
        path = self.content / plan.name
        return path.is_file() and digest_file(path) == shard.digest

    def save(self, outcome: ShardOutcome) -> None:
        """Record that a shard was written.

        Raises:
            InputError: The folder cannot be written.
        """
        path = self.outcome_file(outcome.shard.name)
        write_document(path, _OUTCOME, outcome.model_dump(mode="json"))

    def outcome(self, name: str) -> ShardOutcome:
        """Return the result of writing a shard.

        Raises:
            NotFoundError: The shard is not finished.
            CorruptError: The journal is damaged.
        """
        return ShardOutcome.model_validate(read_document(self.outcome_file(name), _OUTCOME))

    def has_finished(self) -> bool:
        """Return whether any shard is finished."""
        return any(self._finished.glob("*.json"))

    def clear(self) -> None:
        """Remove everything but the dataset's files."""
        for path in [path for path in self.root.iterdir() if path != self.content]:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.root, ignore_errors=True)


def journal_of(target: Path) -> Journal:
    """Return the journal of conversions to a folder: always the same one."""
    name = target.name
    if len(os.fsencode(name)) > _NAME_BYTES:
        name = hashlib.sha256(os.fsencode(name)).hexdigest()
    # `sweep` leaves it alone, because the name has no process id.
    return Journal(target.with_name(f"{ASIDE_PREFIX}convert-of-dataset-{name}"))


def plan_digest(records: str, settings: dict[str, Any]) -> str:
    """Return the digest of a plan: of its records and of all that determines the shards' bytes."""
    text = json.dumps(settings, sort_keys=True)
    return hashlib.sha256(f"{records}\n{text}".encode()).hexdigest()


def _line(entry: Entry) -> bytes:
    fields = [entry.key, entry.label, entry.size, entry.ref, entry.modified]
    return json.dumps(fields).encode() + b"\n"

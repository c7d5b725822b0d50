"""Catalogue of a scan's records: a SQLite database on disk, so that memory is bounded.

It holds one row per record during a conversion. SQLite sorts and groups with temporary files.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from timonel.data.manifest import Duplicate
from timonel.data.schema import SPLITS, Split
from timonel.data.sources.base import Entry, Scan, Source
from timonel.data.splits import Fractions, position, rank, thresholds
from timonel.errors import DataError, InputError
from timonel.storage.digests import digest_lines

_CACHE_KIB = 1 << 15
_BATCH = 1000
NAMED = 20
"""Limit on items that the manifest names, such as groups of identical records."""
_TABLES = """
CREATE TABLE records (
    key TEXT PRIMARY KEY, label, size INTEGER, ref TEXT, modified INTEGER, assigned INTEGER,
    content TEXT, unit TEXT, is_shared INTEGER, place REAL, rank BLOB, split INTEGER, digest TEXT
) WITHOUT ROWID;
CREATE TABLE files (key TEXT PRIMARY KEY, line TEXT) WITHOUT ROWID;
"""
# Copies of a record that the source assigns to a later split; `best` is the first of that split.
_HELD = """
WITH top AS (
    SELECT digest, MAX(assigned) AS held FROM records WHERE digest NOT NULL
    GROUP BY digest HAVING held NOT NULL
), best AS (
    SELECT top.digest, held, MIN(key) AS first FROM top
    JOIN records ON records.digest = top.digest AND assigned = held GROUP BY top.digest
)
SELECT key, first, held FROM best JOIN records ON records.digest = best.digest
WHERE assigned IS NOT held ORDER BY key
"""


@dataclass(frozen=True)
class IdenticalGroups:
    """Groups of identical records; ``first`` has those with contradictory labels before others."""

    first: tuple[Duplicate, ...]
    count: int
    contradictions: int


class RecordCatalogue:
    """Records of one scan, in a database file that replaces an existing one. Not thread-safe."""

    def __init__(self, path: Path, seed: int) -> None:
        self._seed = seed
        path.unlink(missing_ok=True)
        with _one_line(path):
            self._db = sqlite3.connect(path, isolation_level=None)
            # A crash leaves nothing to recover: the next conversion scans again.
            self._db.execute("PRAGMA journal_mode=OFF")
            self._db.execute("PRAGMA synchronous=OFF")
            self._db.execute(f"PRAGMA cache_size=-{_CACHE_KIB}")
            self._db.executescript(_TABLES)
        self._path = path

    def close(self) -> None:
        """Close the database. Idempotent."""
        self._db.close()

    def add(self, scan: Scan) -> None:
        """Store all entries of a scan."""
        with _one_line(self._path):
            self._db.execute("BEGIN")
            try:
                self._db.executemany(
                    f"INSERT INTO records VALUES ({', '.join('?' * 13)})",  # noqa: S608 - no input
                    map(self._row, scan.entries),
                )
            except sqlite3.IntegrityError as error:
                raise DataError("the source gives two records the same key") from error
            self._db.execute("COMMIT")
            self._db.execute("CREATE INDEX units ON records (unit)")
            self._db.execute("CREATE INDEX places ON records (label, place)")
            self._db.execute(
                "CREATE TEMP TABLE mixed AS SELECT unit FROM records WHERE is_shared "
                "GROUP BY unit HAVING COUNT(DISTINCT label) > 1"
            )

    def count(self) -> int:
        """Return the number of records."""
        return int(self._one("SELECT COUNT(*) FROM records"))

    def assigned(self) -> tuple[Split, ...]:
        """Return the splits that the source assigns."""
        rows = self._db.execute("SELECT DISTINCT assigned FROM records WHERE assigned NOT NULL")
        found = {row[0] for row in rows}
        return tuple(split for index, split in enumerate(SPLITS) if index in found)

    def labels(self) -> set[str]:
        """Return the classes."""
        return {str(row[0]) for row in self._db.execute("SELECT DISTINCT label FROM records")}

    def first_of(self, label: str) -> str:
        """Return the key of the first record with a class, alone or among several."""
        row = self._db.execute(
            "SELECT key FROM records WHERE instr('|' || label || '|', '|' || ? || '|') "
            "ORDER BY key LIMIT 1",
            (label,),
        ).fetchone()
        return str(row[0])

    def counts(self) -> dict[Split, int]:
        """Return the number of records of each split."""
        return self._of_splits("COUNT(*)")

    def sizes(self) -> dict[Split, int]:
        """Return the bytes of each split."""
        return self._of_splits("SUM(size)")

    def find_identical(self, source: Source) -> IdenticalGroups:
        """Find identical records; only records of the same group are read."""
        self._db.execute(
            "CREATE TEMP TABLE suspects AS SELECT key, label, size, ref, content FROM records "
            "WHERE content IN (SELECT content FROM records WHERE content NOT NULL "
            "GROUP BY content HAVING COUNT(*) > 1)"
        )
        suspects = self._db.execute("SELECT * FROM suspects")
        with ThreadPoolExecutor(thread_name_prefix="digest") as pool:
            while rows := suspects.fetchmany(_BATCH):
                entries = [
                    Entry(key, label, size, json.loads(ref), group=content)
                    for key, label, size, ref, content in rows
                ]
                found = zip(pool.map(source.digest, entries), entries, strict=True)
                self._db.executemany(
                    "UPDATE records SET digest = ? WHERE key = ?",
                    [(digest, entry.key) for digest, entry in found],
                )
        self._db.execute("CREATE INDEX copies ON records (digest) WHERE digest IS NOT NULL")
        self._db.execute(
            "CREATE TEMP TABLE identical AS SELECT digest, COUNT(DISTINCT label) < 2 AS agree, "
            "MIN(key) AS first FROM records WHERE digest IS NOT NULL GROUP BY digest "
            "HAVING COUNT(*) > 1"
        )
        named = self._db.execute(
            "SELECT digest FROM identical ORDER BY agree, first LIMIT ?", (NAMED,)
        ).fetchall()
        return IdenticalGroups(
            tuple(self._duplicate(digest) for (digest,) in named),
            self._one("SELECT COUNT(*) FROM identical"),
            self._one("SELECT COUNT(*) FROM identical WHERE NOT agree"),
        )

    def _duplicate(self, digest: str) -> Duplicate:
        rows = self._db.execute(
            "SELECT key, label FROM records WHERE digest = ? ORDER BY key", (digest,)
        ).fetchall()
        return Duplicate(
            digest=digest,
            keys=tuple(key for key, _ in rows),
            labels=tuple(sorted({str(label) for _, label in rows})),
        )

    def leave_out_copies(self) -> list[tuple[str, str]]:
        """Remove records with an identical copy in a later split; return key and reason of each."""
        rows = self._db.execute(_HELD).fetchall()
        self._db.executemany("DELETE FROM records WHERE key = ?", ((row[0],) for row in rows))
        return [
            (key, f"identical to {best} of the {SPLITS[held]} split") for key, best, held in rows
        ]

    def use_assigned(self) -> None:
        """Put the records into the splits that the source assigns."""
        self._db.execute("UPDATE records SET split = assigned")

    def unassigned(self) -> int:
        """Return the number of records in no split."""
        return int(self._one("SELECT COUNT(*) FROM records WHERE split IS NULL"))

    def divide(self, fractions: Fractions, origin: Split | None = None) -> None:
        """Divide the records of a split, or those in none, by thresholds on their positions."""
        self._db.execute(
            "UPDATE records SET split = CASE WHEN place < ? THEN 0 WHEN place < ? THEN 1 ELSE 2 END"
            " WHERE split IS ?",
            (*thresholds(fractions), None if origin is None else SPLITS.index(origin)),
        )

    def put_unassigned(self, split: Split) -> None:
        """Put all records in no split into one."""
        self._db.execute("UPDATE records SET split = ? WHERE split IS NULL", (SPLITS.index(split),))

    def move_to_train(self, *, by_label: bool) -> list[str]:
        """Give each label without training records the group nearest to train; return the labels.

        Groups of records with several labels are the last choice.
        """
        label = "label" if by_label else "0"
        lost = f"{label} NOT IN (SELECT {label} FROM records WHERE split = 0)"  # noqa: S608 - no input
        rows = self._db.execute(f"SELECT DISTINCT {label} FROM records WHERE {lost} ORDER BY 1")  # noqa: S608 - no input
        labels = [str(found) for (found,) in rows]
        self._db.execute(
            "UPDATE records SET split = 0 WHERE unit IN (SELECT unit FROM ("  # noqa: S608 - no input
            f"SELECT unit, ROW_NUMBER() OVER (PARTITION BY {label} ORDER BY split, "
            f"unit IN (SELECT unit FROM mixed), place, unit) AS number FROM records WHERE {lost}"
            ") WHERE number = 1)"
        )
        return labels

    def fill(self, split: Split, donors: Sequence[Split], *, by_label: bool) -> bool:
        """Move the group that is nearest to an empty split, from train if possible.

        No label loses its last training group, and no split its last group. Returns whether there
        was one.
        """
        label = "label" if by_label else "0"
        marks = ", ".join(str(SPLITS.index(each)) for each in donors)
        moved = self._db.execute(
            "UPDATE records SET split = ? WHERE unit = (SELECT unit FROM records "  # noqa: S608 - no input
            f"WHERE split IN ({marks}) AND unit NOT IN (SELECT MIN(unit) FROM records "
            f"GROUP BY split, CASE WHEN split = 0 THEN {label} END HAVING MIN(unit) = MAX(unit)) "
            "ORDER BY split, unit IN (SELECT unit FROM mixed), place DESC, unit LIMIT 1)",
            (SPLITS.index(split),),
        )
        return moved.rowcount > 0

    def spread_groups(self) -> tuple[str, tuple[Split, ...]] | None:
        """Return a group of records that the source assigns to several splits, or None."""
        row = self._db.execute(
            "SELECT unit, MIN(assigned), MAX(assigned) FROM records WHERE is_shared "
            "GROUP BY unit HAVING COUNT(DISTINCT assigned) > 1 ORDER BY unit LIMIT 1"
        ).fetchone()
        return None if row is None else (str(row[0]), (SPLITS[row[1]], SPLITS[row[2]]))

    def spread_copies(self) -> int:
        """Return the number of groups of identical records in several splits."""
        return int(
            self._one(
                "SELECT COUNT(*) FROM (SELECT 1 FROM records WHERE digest NOT NULL "
                "GROUP BY digest HAVING COUNT(DISTINCT split) > 1)"
            )
        )

    def without_train(self) -> tuple[str, str, Split] | None:
        """Return label, key and split of a record whose label is missing in train, or None."""
        row = self._db.execute(
            "SELECT label, key, split FROM records WHERE label NOT IN "
            "(SELECT DISTINCT label FROM records WHERE split = 0) ORDER BY split, key LIMIT 1"
        ).fetchone()
        return None if row is None else (str(row[0]), row[1], SPLITS[row[2]])

    def records(self) -> Iterator[Entry]:
        """Yield all records with their splits, split by split, in the order of the split."""
        rows = self._db.execute(
            "SELECT split, key, label, size, ref, modified FROM records ORDER BY split, rank, key"
        )
        for split, key, label, size, ref, modified in rows:
            yield Entry(key, label, size, json.loads(ref), SPLITS[split], modified=modified)

    def add_files(self, files: Iterable[tuple[str, str]]) -> None:
        """Store key and line of raw files, for their digest."""
        with _one_line(self._path):
            self._db.execute("BEGIN")
            self._db.executemany("INSERT OR REPLACE INTO files VALUES (?, ?)", files)
            self._db.execute("COMMIT")

    def digest_files(self) -> str:
        """Return the digest of the lines of all files, in the order of their keys."""
        return digest_lines(
            line for (line,) in self._db.execute("SELECT line FROM files ORDER BY key")
        )

    def _row(self, entry: Entry) -> tuple[Any, ...]:
        unit = next((u for u in (entry.split_group, entry.group) if u is not None), None)
        return (
            entry.key,
            entry.label,
            entry.size,
            json.dumps(entry.ref),
            entry.modified,
            None if entry.split is None else SPLITS.index(entry.split),
            entry.group,
            f"key {entry.key}" if unit is None else unit,
            unit is not None,
            position(unit or entry.key, self._seed),
            rank(entry.key, self._seed),
            None,
            None,
        )

    def _of_splits(self, value: str) -> dict[Split, int]:
        query = f"SELECT split, {value} FROM records GROUP BY split"  # noqa: S608 - no input
        rows = dict(self._db.execute(query))
        return {split: rows.get(index, 0) for index, split in enumerate(SPLITS)}

    def _one(self, query: str) -> Any:
        return self._db.execute(query).fetchone()[0]


@contextlib.contextmanager
def _one_line(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        raise InputError(
            f"cannot write {path}: {error}", hint="choose a writable folder with free space"
        ) from error

"""Scalars that scripts write: TensorBoard's event files, and the file of cloudml-hypertune.

Files are read as they grow, without TensorFlow and TensorBoard. A run's files are those in the
folder of its job, and those in folders that its chief recorded, with the run's ID in their names.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from google.protobuf.message import DecodeError

from timonel.data.records import read_appended
from timonel.errors import CorruptError
from timonel.serving.protos.messages import event_pb2
from timonel.serving.protos.tensors import from_proto
from timonel.serving.status import StatusError
from timonel.tracking.events import decode_number

HYPERTUNE = "hypertune/output.metrics"
"""File of cloudml-hypertune in the folder of a trial's job."""
_MARK = "tfevents"
"""Part of every event file's name."""
_CREATED = re.compile(rf"{_MARK}\.(\d+)")
_OWN_PARTS = frozenset({"train", "validation", "evaluator"})
_NO_TAGS = frozenset({"timestamp", "trial", "global_step", "checkpoint_path"})
_SEARCH_INTERVAL_S = 2.0
"""Minimum seconds between two searches of the job's folder, which may have many files."""


@dataclass(frozen=True, order=True)
class EventSource:
    """A folder of event files, or the file of cloudml-hypertune.

    The greatest source that has a tag provides its values.
    """

    is_hypertune: bool
    is_of_script: bool
    """Whether the script wrote it; timonel writes the metrics of ``fit`` to the job's folder."""
    is_of_chief: bool
    is_validation: bool
    created: int
    folder: str


@dataclass(frozen=True)
class Scalar:
    """A value of a tag at a step."""

    source: EventSource
    tag: str
    step: int
    value: float


@dataclass
class _EventFile:
    path: Path
    source: EventSource
    offset: int = 0


class ScalarReader:
    """Reads the scalars of one run incrementally. For one thread.

    Args:
        job_dir: The job's folder, which is searched.
        run_id: The run's ID.
        fetch: Brings the folder's files up to date, before each search.
        clock: Monotonic clock in seconds.
    """

    def __init__(
        self,
        job_dir: Path,
        run_id: str,
        fetch: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.problems: dict[EventSource, str] = {}
        """Sources that cannot be read completely, and why."""
        self._job_dir = job_dir
        self._run_id = run_id
        self._fetch = fetch
        self._clock = clock
        self._folders: set[Path] = set()
        self._files: dict[Path, _EventFile] = {}
        self._search_due = 0.0
        self._hypertune = _HypertuneFile(job_dir / HYPERTUNE)

    def add_folder(self, folder: Path) -> None:
        """Add a folder into which the run's chief writes event files."""
        self._folders.add(folder)

    def read(self, *, search: bool = False) -> Iterator[Scalar]:
        """Yield the new scalars.

        Args:
            search: Whether to search the job's folder even if it was searched recently.
        """
        self._find(search=search)
        # Validation folders last: Keras' callback writes a step's values there after those of
        # training, which must not be taken for the result until then.
        for file in sorted(self._files.values(), key=lambda f: (f.source, _created(f.path.name))):
            if file.source not in self.problems:
                yield from self._read_file(file)
        yield from self._hypertune.read()

    def _find(self, *, search: bool) -> None:
        for folder in self._folders:
            self._add(folder, [name for name in _names(folder) if self._run_id in name])
        if search or self._clock() >= self._search_due:
            self._fetch()
            for folder_name, _, names in os.walk(self._job_dir):
                self._add(Path(folder_name), names)
            self._search_due = self._clock() + _SEARCH_INTERVAL_S

    def _add(self, folder: Path, names: list[str]) -> None:
        for name in sorted((n for n in names if _MARK in n), key=_created):
            path = folder / name
            if path not in self._files:
                self._files[path] = _EventFile(path, self._source_of(path))

    def _source_of(self, path: Path) -> EventSource:
        folder, is_of_chief = path.parent, self._run_id in path.name
        for file in self._files.values():
            if file.path.parent == folder and file.source.is_of_chief == is_of_chief:
                return file.source
        is_own = folder.parent == self._job_dir / "tensorboard" and folder.name in _OWN_PARTS
        is_validation = folder.name.startswith(("val", "eval"))
        return EventSource(
            False, not is_own, is_of_chief, is_validation, _created(path.name), str(folder)
        )

    def _read_file(self, file: _EventFile) -> Iterator[Scalar]:
        try:
            if file.path.stat().st_size <= file.offset:
                return
            for payload, offset in read_appended(file.path, file.offset):
                file.offset = offset
                for tag, step, value in _scalars(payload):
                    yield Scalar(file.source, tag, step, value)
        except FileNotFoundError:  # the script deleted it
            return
        except (CorruptError, DecodeError, StatusError, OSError) as error:
            text = error.message if isinstance(error, CorruptError) else f"{file.path}: {error}"
            self.problems[file.source] = text


def has_scalars(name: str) -> bool:
    """Return whether a file of a job's folder, by its relative name, may contain scalars."""
    return name == HYPERTUNE or _MARK in name.rpartition("/")[2]


class _HypertuneFile:
    """The file of cloudml-hypertune: the last 100 reports as lines of JSON, rewritten each time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._source = EventSource(True, True, True, False, 0, str(path))
        self._state: tuple[int, int] | None = None
        self._latest = 0.0

    def read(self) -> Iterator[Scalar]:
        """Yield the new values."""
        try:
            stat = self._path.stat()
            state = stat.st_mtime_ns, stat.st_size
            lines = [] if state == self._state else self._path.read_bytes().splitlines()
        except OSError:
            return
        self._state = state
        for line in lines:
            try:
                entry = orjson.loads(line)
                timestamp, step = float(entry["timestamp"]), int(entry["global_step"])
            except (ValueError, KeyError, TypeError):  # cut off, as it is being written
                continue
            if timestamp > self._latest:
                self._latest = timestamp
                for tag in entry.keys() - _NO_TAGS:
                    value = decode_number(entry[tag])
                    if value is not None:
                        yield Scalar(self._source, tag, step, value)


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208 - only names are needed
    except OSError:  # the script deleted it
        return []


def _created(name: str) -> int:
    """Return the time in the name of an event file, in Unix seconds."""
    found = _CREATED.search(name)
    return int(found[1]) if found else 0


def _scalars(payload: bytes) -> Iterator[tuple[str, int, float]]:
    """Yield tag, step and value of the scalars in a serialized event."""
    event = event_pb2.Event.FromString(payload)
    for entry in event.summary.value:
        value = _number(entry)
        if value is not None:
            yield entry.tag, event.step, value


def _number(entry: Any) -> float | None:
    """Return the number in a summary's value, None if it has none."""
    kind = entry.WhichOneof("value")
    if kind == "simple_value":
        return float(entry.simple_value)
    if kind != "tensor" or entry.tensor.tensor_shape.dim:
        return None
    array = from_proto(entry.tag, entry.tensor)
    return float(array) if array.dtype.kind in "fiu" else None

"""TFRecord files of any writer: TFRecorder, TensorFlow Datasets, own scripts."""

from __future__ import annotations

import gzip
import mmap
import os
import re
import shutil
import tempfile
import weakref
import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from timonel.data.examples import decode_example
from timonel.data.manifest import MANIFEST_NAME, Manifest, parse_manifest
from timonel.data.records import CRC_BYTES, MAX_BYTES, Span, check_payload, spans
from timonel.data.schema import LABEL_FEATURE, Split, split_named
from timonel.data.sources.formats import file_format, table_format
from timonel.data.sources.tablefile import MemoryTable
from timonel.errors import CorruptError, DataError
from timonel.storage.atomic import temporary_prefix, unwritable
from timonel.storage.location import Location

_GZIP = b"\x1f\x8b"
_BLOCK_BYTES = 1 << 20
_MOST_TIMES = 100
"""Larger files than `MAX_BYTES` may not grow more than this when decompressed."""
_NUMBERED = re.compile(r"(.*)-(\d+)-of-(\d+)(.*)")
_SHOWN = 5


def record_files(location: Location) -> list[Location]:
    """Return the TFRecord files at a file, pattern or folder; folders inside are not searched."""
    if location.is_dir():
        names = location.children[1]
        return [location / name for name in names if table_format(name) == "tfrecord"]
    if location.is_pattern or location.is_file():
        return [file for file in location.files() if file_format(file) == "tfrecord"]
    return []


Example = dict[str, list[Any]]
"""Values of a record's features: bytes, whole numbers or floats."""


class RecordFile:
    """TFRecord file whose records are read at any position. Thread-safe.

    Compressed files are decompressed to a temporary file, which ends with this object.
    """

    def __init__(self, location: Location) -> None:
        self.location = location
        self._path = location.local
        with self._opened() as file:
            if file.read(2) == _GZIP:
                self._path = self._decompressed(file)

    @property
    def is_compressed(self) -> bool:
        """Whether the file is compressed, so that reading any record takes as long as all."""
        return self._path != self.location.local

    def records(self) -> Iterator[tuple[Span, Example | str]]:
        """Yield the position of each record with its features, or with what is wrong with it."""
        for span, payload in self.payloads():
            try:
                yield span, "a wrong checksum" if payload is None else decode_example(payload)
            except CorruptError as error:
                yield span, error.message

    def payloads(self, start: int = 0) -> Iterator[tuple[Span, bytes | None]]:
        """Yield position and payload of each record; None instead if its checksum is wrong.

        Positions are in bytes of the decompressed file.
        """
        for span, content in self._spans(start):
            framed = content[span.offset : span.offset + span.length + CRC_BYTES]
            try:
                yield span, check_payload(framed, span, self._path)
            except CorruptError:
                yield span, None

    def spans(self) -> Iterator[Span]:
        """Yield the position of each record, without reading it."""
        return (span for span, _ in self._spans(0))

    def _spans(self, start: int) -> Iterator[tuple[Span, mmap.mmap]]:
        path = self.location.local
        with self._opened() as file:
            if not os.fstat(file.fileno()).st_size:
                return
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        with content:
            try:
                for span in spans(content, path, start):
                    yield span, content
            except CorruptError as error:
                raise DataError(
                    error.message.replace(str(path), str(self.location)),
                    hint="it is damaged: write it again",
                ) from error

    def read(self, span: Span) -> Example:
        """Return the features of a record that `records` yielded."""
        # Opened for each record, which takes microseconds: there may be thousands of files.
        with self._opened() as file:
            framed = os.pread(file.fileno(), span.length + CRC_BYTES, span.offset)
        return decode_example(check_payload(framed, span, self.location.local))

    def _opened(self) -> BinaryIO:
        try:
            return self._path.open("rb", buffering=0)
        except OSError as error:
            raise DataError(f"cannot read {self.location}: {error.strerror}") from error

    def _decompressed(self, file: BinaryIO) -> Path:
        folder = tempfile.mkdtemp(prefix=temporary_prefix())
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        path = Path(folder, "records")
        most = max(MAX_BYTES, _MOST_TIMES * os.fstat(file.fileno()).st_size)
        file.seek(0)
        try:
            with gzip.open(file) as content, path.open("wb") as target:
                while block := self._block(content):
                    target.write(block)
                    if target.tell() > most:
                        raise DataError(
                            f"{self.location} has more than {most:,} bytes when decompressed, "
                            f"over {_MOST_TIMES} times as many",
                            hint="decompress it with gunzip if you trust it",
                        )
        except OSError as error:
            raise unwritable(path.parent, error) from error
        return path

    def _block(self, content: gzip.GzipFile) -> bytes:
        try:
            return content.read(_BLOCK_BYTES)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"cannot decompress {self.location}: {error}") from error


def missing_files(files: Sequence[Location]) -> list[str]:
    """Return a warning per set of files such as ``train-00000-of-00003`` that is incomplete."""
    sets: dict[tuple[str, ...], set[int]] = defaultdict(set)
    for file in files:
        if found := _NUMBERED.fullmatch(file.name):
            head, number, total, tail = found.groups()
            sets[file.parent.uri, head, total, tail].add(int(number))
    warnings = []
    for (_, head, total, tail), numbers in sets.items():
        missing = (number for number in range(int(total)) if number not in numbers)
        names = [f"{head}-{n:0{len(total)}}-of-{total}{tail}" for n in islice(missing, _SHOWN)]
        if names:
            more = ", ..." if int(total) - len(numbers) > len(names) else ""
            warnings.append(f"not converted, since they are missing: {', '.join(names)}{more}")
    return warnings


def splits_of(files: Sequence[Location]) -> list[Split | None]:
    """Return the splits that the names of files or folders assign, or else None for each.

    Each name has a split as a word, such as ``mnist-train.tfrecord-00000-of-00001``, or each folder
    is named as one, and not all the same.
    """
    splits = [_split_of(file) for file in files]
    is_assigned = None not in splits and len(set(splits)) > 1
    return splits if is_assigned else [None] * len(files)


def _split_of(file: Location) -> Split | None:
    words = [*re.split(r"[-_.]", file.name.lower()), file.parent.name]
    return next(filter(None, map(split_named, words)), None)


def label_names(location: Location, label: str) -> Sequence[str]:
    """Return the names of classes that are stored beside TFRecords; empty if there are none.

    TensorFlow Datasets writes ``label.labels.txt``, timonel a manifest.
    """
    folder = location if location.is_dir() else location.parent
    names = folder / f"{label}.labels.txt"
    if names.is_file():
        return [line.strip() for line in names.read().decode().splitlines() if line.strip()]
    manifest = dataset_manifest(folder) if label == LABEL_FEATURE else None
    return () if manifest is None else manifest.labels


def dataset_manifest(folder: Location) -> Manifest | None:
    """Return the manifest of a dataset of timonel; None if the folder is none."""
    path = folder / MANIFEST_NAME
    if not folder.is_local and table_format(folder.name) is not None:
        return None  # a file: an error of the server should name it
    if isinstance(folder, MemoryTable) or folder.is_pattern or not path.is_file():
        return None
    text = path.read().decode(errors="replace")
    return parse_manifest(text, str(path)) if '"kind": "dataset"' in text[:200] else None

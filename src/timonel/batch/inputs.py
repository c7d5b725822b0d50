"""Find the input files of a batch prediction, and their format."""

from __future__ import annotations

import contextlib
import glob
import gzip
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal, cast, get_args

from timonel.data import Dataset
from timonel.data.dataset import check_split
from timonel.data.manifest import MANIFEST_NAME
from timonel.data.schema import IMAGE_ENDINGS
from timonel.errors import DataError, InputError, NotFoundError, SpecError
from timonel.storage import is_local, local_path

InputFormat = Literal["images", "csv", "jsonl", "parquet", "tfrecord"]

_ENDINGS: dict[str, InputFormat] = {
    **dict.fromkeys(IMAGE_ENDINGS, "images"),
    **dict.fromkeys((".csv", ".tsv"), "csv"),
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), "jsonl"),
    **dict.fromkeys((".parquet", ".pq"), "parquet"),
    **dict.fromkeys((".tfrecord", ".tfrecords"), "tfrecord"),
}
_COMPRESSIBLE = ("csv", "jsonl", "tfrecord")


@dataclass(frozen=True)
class InputFile:
    """A file to predict.

    Args:
        key: Name of the file in keys: its path relative to the input.
        path: Its path.
        format: Its format.
        size: Its size in bytes.
        modified: Time of its last change, in nanoseconds.
    """

    key: str
    path: Path
    format: InputFormat
    size: int
    modified: int

    @property
    def is_compressed(self) -> bool:
        """Whether it is compressed with gzip."""
        return self.path.suffix == ".gz"


@dataclass(frozen=True)
class Inputs:
    """Files to predict, all of one format.

    Args:
        files: The files, in the order of the predictions.
        ignored: Number of other files in the folders.
        labels: Class names of a dataset; empty for a regression, None without a dataset.
    """

    files: Sequence[InputFile]
    ignored: int = 0
    labels: tuple[str, ...] | None = None


def find_inputs(
    inputs: Sequence[str | os.PathLike[str]],
    split: str | None = None,
    input_format: str | None = None,
) -> Inputs:
    """Find files, in folders recursively.

    Args:
        inputs: Folders, files, glob patterns, or one dataset.
        split: Split of the dataset.
        input_format: Format of files whose names do not show it.

    Raises:
        NotFoundError: Nothing is there.
        SpecError: The format is unknown, or several formats are mixed.
        DataError: A file cannot be read.
    """
    if input_format is not None and input_format not in get_args(InputFormat):
        known = ", ".join(get_args(InputFormat))
        raise SpecError(f"expected one of the formats {known}, got {input_format!r}")
    if not inputs:
        raise SpecError("nothing to predict", hint="name a folder or files")
    if dataset := _dataset(inputs, split):
        return dataset
    given = cast("InputFormat | None", input_format)
    found: list[InputFile] = []
    ignored = 0
    for each in inputs:
        files = list(_files(os.fspath(each), several=len(inputs) > 1))
        known_files = [(key, path, given or format_of(path)) for key, path in files]
        found += [_input(key, path, kind) for key, path, kind in known_files if kind is not None]
        ignored += sum(kind is None for _, _, kind in known_files)
    _check(inputs, found, ignored)
    return Inputs(found, ignored)


def format_of(path: Path) -> InputFormat | None:
    """Return the format that the name of a file shows, or None."""
    name = path.name.lower()
    if name.endswith(".gz"):
        kind = _ENDINGS.get(Path(name[:-3]).suffix)
        return kind if kind in _COMPRESSIBLE else None
    # TensorFlow's shards are named data.tfrecord-00000-of-00010.
    return _ENDINGS.get(Path(name).suffix.partition("-")[0])


@contextlib.contextmanager
def open_lines(path: Path) -> Iterator[IO[bytes]]:
    """Open a file of lines, which may be compressed.

    Raises:
        DataError: It cannot be read.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            yield cast("IO[bytes]", file)
    except (OSError, EOFError) as error:
        raise DataError(f"cannot read {path}: {error}") from error


def _dataset(inputs: Sequence[str | os.PathLike[str]], split: str | None) -> Inputs | None:
    """Return the shards of a dataset; None if the inputs are other files."""
    first = os.fspath(inputs[0])
    is_dataset = not is_local(first) or (local_path(first) / MANIFEST_NAME).is_file()
    if not is_dataset:
        if split is not None:
            raise SpecError(f"{first} is no dataset, so it has no split {split}")
        return None
    if len(inputs) > 1:
        raise SpecError(f"the dataset {first} must be the only input")
    if split is None:
        raise SpecError(f"{first} is a dataset", hint="name its split, such as --split test")
    dataset = Dataset.open(first)
    files = [_input(path.name, path, "tfrecord") for path in dataset.shards(check_split(split))]
    if not files:
        raise InputError(f"the dataset {first} has no records in the split {split}")
    return Inputs(files, labels=dataset.labels)


def _files(text: str, *, several: bool) -> Iterator[tuple[str, Path]]:
    """Yield the key and path of each file of one input, in order."""
    path = local_path(text)
    if path.is_dir():
        prefix = f"{text.rstrip('/')}/" if several else ""
        for parent, folders, names in os.walk(path):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            for name in sorted(name for name in names if not name.startswith(".")):
                file = Path(parent, name)
                yield prefix + _readable(file.relative_to(path).as_posix()), file
    elif path.exists():
        yield _readable(text if several else path.name), path
    elif glob.has_magic(text):
        for name in sorted(glob.glob(text, recursive=True)):  # noqa: PTH207 - keeps names as given
            if Path(name).is_file():
                yield _readable(name), Path(name)
    else:
        raise NotFoundError(f"no folder or file at {text}", hint="check the path")


def _readable(name: str) -> str:
    """Escape bytes that are not UTF-8, as keys require."""
    return os.fsencode(name).decode(errors="backslashreplace")


def _input(key: str, path: Path, kind: InputFormat) -> InputFile:
    try:
        state = path.stat()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    return InputFile(key, path.absolute(), kind, state.st_size, state.st_mtime_ns)


def _check(inputs: Sequence[object], found: Sequence[InputFile], ignored: int) -> None:
    where = ", ".join(map(str, inputs))
    if not found:
        what = f"{ignored} files of unknown type" if ignored else "no files"
        raise DataError(
            f"nothing to predict in {where}: found {what}",
            hint="use images, CSV, JSON lines (.jsonl), Parquet or TFRecord files",
        )
    formats = Counter(file.format for file in found)
    if len(formats) > 1:
        counts = ", ".join(f"{count} {kind}" for kind, count in formats.most_common())
        raise SpecError(
            f"{where} has files of several formats: {counts}",
            hint="predict them one by one, with a pattern such as 'folder/*.csv'",
        )
    repeated = [key for key, count in Counter(file.key for file in found).items() if count > 1]
    if repeated:
        raise SpecError(f"{repeated[0]} is named twice", hint="name each file once")

"""Find the input files of a batch prediction, and their format."""

from __future__ import annotations

import functools
import glob
import os
import posixpath
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast, get_args

from timonel.data import Dataset
from timonel.data.dataset import check_split
from timonel.data.manifest import MANIFEST_NAME
from timonel.data.schema import IMAGE_ENDINGS
from timonel.data.sources.formats import file_format
from timonel.errors import DataError, InputError, NotFoundError, SpecError
from timonel.storage.location import COMPRESSED_ENDINGS, Location, revision_number
from timonel.storage.object_store import ObjectStore
from timonel.units import counted

InputFormat = Literal["images", "csv", "jsonl", "parquet", "tfrecord"]


@dataclass(frozen=True)
class InputFile:
    """A file to predict.

    Args:
        key: Name of the file in keys: its path relative to the input.
        size: Its size in bytes.
        modified: Number that changes when the file does.
        given: Number of the input that it belongs to.
    """

    key: str
    uri: str
    format: InputFormat
    size: int
    modified: int
    given: int = 0

    @property
    def location(self) -> Location:
        """Its location; a downloaded copy exists as long as this object."""
        return local_copy(self.uri, self.modified)

    @property
    def is_compressed(self) -> bool:
        """Whether it is compressed, so that it has no random access."""
        return self.uri.lower().endswith(COMPRESSED_ENDINGS)


@dataclass(frozen=True)
class _Found:
    """A file of any format."""

    uri: str
    size: int
    modified: int
    key: str = ""


@dataclass(frozen=True)
class Inputs:
    """Files to predict, all of one format.

    Args:
        files: The files, in the order of the predictions.
        dataset: The dataset that they belong to, if any.
    """

    files: Sequence[InputFile]
    ignored: int = 0
    dataset: Dataset | None = None

    @property
    def labels(self) -> tuple[str, ...] | None:
        """Class names of a dataset; empty for a regression, None without a dataset."""
        return None if self.dataset is None else self.dataset.labels


def find_inputs(
    inputs: Sequence[str | os.PathLike[str]],
    split: str | None = None,
    input_format: str | None = None,
) -> Inputs:
    """Find files, in folders recursively.

    Args:
        inputs: Folders, files, patterns, or one dataset; paths or URIs.
        input_format: Format of files whose names do not show it.
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
    for number, each in enumerate(inputs):
        for file in _files(os.fspath(each), several=len(inputs) > 1):
            kind = given or format_of(Location(file.uri))
            if kind is None:
                ignored += 1
            else:
                state = file.size, file.modified
                found.append(InputFile(file.key, file.uri, kind, *state, number))
    _check(inputs, found, ignored)
    return Inputs(found, ignored)


def format_of(file: Location) -> InputFormat | None:
    """Return the format that the name or the first bytes of a file show, or None."""
    if file.name.lower().endswith(IMAGE_ENDINGS):
        return "images"
    found = file_format(file)
    return None if found == "arrow" else found


@functools.lru_cache(maxsize=8)
def local_copy(uri: str, _modified: int) -> Location:
    """Return the location of a file, whose ``local`` is downloaded once."""
    return Location(uri)


def _dataset(inputs: Sequence[str | os.PathLike[str]], split: str | None) -> Inputs | None:
    """Return the shards of a dataset; None if the inputs are other files."""
    first = os.fspath(inputs[0])
    place = Location(first)
    # An error of a server should name a file that is asked for, not a manifest.
    is_remote_file = not place.is_local and format_of(place) is not None
    if is_remote_file or not (place / MANIFEST_NAME).is_file():
        if split is not None:
            raise SpecError(f"{first} is no dataset, so it has no split {split}")
        return None
    if len(inputs) > 1:
        raise SpecError(f"the dataset {first} must be the only input")
    if split is None:
        raise SpecError(f"{first} is a dataset", hint="name its split, such as --split test")
    dataset = Dataset.open(first)
    shards = dataset.shards(check_split(split))
    if not shards:
        raise InputError(f"the dataset {first} has no records in the split {split}")
    files = [
        InputFile(path.name, found.uri, "tfrecord", found.size, found.modified)
        for path in shards
        for found in [_state(Location(path))]
    ]
    return Inputs(files, dataset=dataset)


def _files(text: str, *, several: bool) -> Iterator[_Found]:
    """Yield the files of one input, in order."""
    location = Location(text)
    if location.is_pattern:
        fixed = posixpath.dirname(location.uri[: _magic(location.uri)])
        shown = posixpath.dirname(text[: _magic(text)])
        found: Iterator[_Found] = map(_state, location.files())
    elif location.is_file():
        yield replace(_state(location), key=_readable(text if several else location.name))
        return
    elif location.is_dir():
        fixed, shown = location.uri, text.rstrip("/")
        found = _below(location)
    else:
        raise NotFoundError(f"no folder or file at {text}", hint="check the path")
    for file in found:
        name = file.uri.removeprefix(fixed).lstrip("/")
        yield replace(file, key=_readable(f"{shown}/{name}" if several and shown else name))


def _below(folder: Location) -> Iterator[_Found]:
    """Yield the files below a folder that are not hidden, in order."""
    if not folder.is_local:
        # One listing has the sizes of all.
        for name, blob in sorted(ObjectStore(folder.uri).find().items()):
            if not any(part.startswith(".") for part in name.split("/")):
                yield _Found((folder / name).uri, blob.size, revision_number(blob))
        return
    for parent, folders, names in os.walk(folder.path):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(name for name in names if not name.startswith(".")):
            file = Location(os.path.join(parent, name))  # noqa: PTH118 - for the URI
            if file.path.is_file() or not file.path.exists():  # a pipe would wait
                yield _state(file)


def _state(location: Location) -> _Found:
    if not location.is_local:
        blob = location.blob()
        return _Found(location.uri, blob.size, revision_number(blob))
    try:
        state = location.path.stat()
    except OSError as error:
        raise InputError(f"cannot read {location}: {error.strerror}") from error
    return _Found(location.uri, state.st_size, state.st_mtime_ns)


def _magic(text: str) -> int:
    """Return the position of the first special character of a pattern."""
    return next(i for i, letter in enumerate(text) if glob.has_magic(letter) or letter == "[")


def _readable(name: str) -> str:
    """Escape bytes that are not UTF-8, as keys require."""
    return os.fsencode(name).decode(errors="backslashreplace")


def _check(inputs: Sequence[object], found: Sequence[InputFile], ignored: int) -> None:
    where = ", ".join(map(str, inputs))
    if not found:
        what = f"{counted(ignored, 'file')} of unknown type" if ignored else "no files"
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

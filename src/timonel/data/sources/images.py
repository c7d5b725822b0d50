"""Folders of images: ``<root>/[<split>/]<label>/**/<image>``.

Image files are recognised by their first bytes, as in TensorFlow's decoder, not by their names.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from timonel.data.manifest import Skipped
from timonel.data.schema import IMAGE_FEATURE, ImageSchema, Split, split_named
from timonel.data.sources.base import (
    Description,
    Entry,
    Raw,
    RawFiles,
    Scan,
    Source,
    UnusableError,
)
from timonel.data.sources.imagefile import image_format, verify_image
from timonel.data.sources.transient import NEVER_READABLE, retried, unreadable
from timonel.data.statistics import Statistics, merged, spread_of
from timonel.errors import DataError
from timonel.storage.digests import digest_file

IMAGE_ENDINGS = (
    *(".jpg", ".jpeg", ".jpe", ".png", ".gif", ".bmp", ".webp"),
    *(".tif", ".tiff", ".heic", ".heif", ".avif", ".jp2", ".svg", ".ico"),
)
_END_BYTES = 4096
_IGNORED_NAMES = frozenset({"thumbs.db", "desktop.ini"})


class ImageFolderSource(Source):
    """Image folders, one per label, nested to any depth, in path order.

    Top-level folders named train, validation and test, with label folders inside, are splits.
    """

    plugin: ClassVar[str] = "images"
    kind: ClassVar[str] = "images"
    portable: ClassVar[bool] = True

    @classmethod
    def recognises(cls, location: Path) -> bool:
        """Tell whether ``location`` is a folder."""
        return location.is_dir()

    def scan(self) -> Scan:
        """Find the images of all label folders."""
        ignored: list[str] = []
        rejected: list[Skipped] = []
        return Scan(self._find(ignored, rejected), "classification", ignored, rejected)

    def read(self, entry: Entry) -> Raw:
        """Read an image and decode it once to verify it."""
        try:
            content = Path(entry.ref).read_bytes()
        except NEVER_READABLE as error:
            raise UnusableError(entry.key, f"cannot read it: {error.strerror}") from error
        return Raw({IMAGE_FEATURE: content}, verify_image(entry.key, content))

    def digest(self, entry: Entry) -> str | None:
        """Return the digest of an image file."""
        try:
            return digest_file(Path(entry.ref))
        except OSError:
            return None  # reading the record reports the error

    def describe(self, statistics: Mapping[Split, Statistics], files: RawFiles) -> Description:
        """Summarise formats and sizes of the images of all splits."""
        images = merged(statistics.values()).images
        if images is None:
            raise DataError(f"{self.location} has no usable images")
        schema = ImageSchema(
            height=spread_of(images.heights),
            width=spread_of(images.widths),
            size=images.size if images.is_uniform else None,
            channels=1 if images.grey == images.heights.total() else 3,
            formats=dict(sorted(images.formats.items())),
        )
        return Description(schema, files.digest, files.count, files.bytes)

    def _find(self, ignored: list[str], rejected: list[Skipped]) -> Iterator[Entry]:
        labels: set[str] = set()
        for split, label, folder in self._label_folders(ignored):
            is_empty = True
            for path in _files(folder):
                key = self._key(path)
                try:
                    entry = self._entry(path, key, label, split)
                except UnusableError as error:
                    rejected.append(error.skipped)
                    is_empty = False
                    continue
                if entry is None:
                    ignored.append(key)
                    continue
                is_empty = False
                labels.add(label)
                yield entry
            if is_empty:
                ignored.append(f"{self._key(folder)}/ (no images)")
        self._check(labels, ignored)
        ignored.sort()

    def _label_folders(self, ignored: list[str]) -> Iterator[tuple[Split | None, str, Path]]:
        folders = self._folders(self.location, ignored)
        if not self._are_splits(folders):
            yield from ((None, _label(folder), folder) for folder in folders)
            return
        for folder in folders:
            split = split_named(folder.name)
            if split is None:
                raise DataError(
                    f"folder {_readable(folder.name)!r} beside the split folders of "
                    f"{self.location} names no split",
                    hint="move it away, or use --folders labels if the folders name labels",
                )
            loose: list[str] = []
            labels = self._folders(folder, loose)
            images = [name for name in loose if name.lower().endswith(IMAGE_ENDINGS)]
            if images:
                raise DataError(
                    f"image {images[0]} is in no label folder of the {split} split",
                    hint=f"put the images into {folder.name}/LABEL/, or move {folder.name}/ away",
                )
            ignored.extend(loose)
            yield from ((split, _label(label), label) for label in labels)

    def _are_splits(self, folders: Sequence[Path]) -> bool:
        """Tell whether the top-level folders are splits, including ``train``."""
        if self.options.folders != "auto":
            return self.options.folders == "splits"
        splits = {split_named(folder.name) for folder in folders} - {None}
        return len(splits) > 1 and "train" in splits

    def _folders(self, parent: Path, ignored: list[str]) -> list[Path]:
        found = []
        for path in sorted(parent.iterdir()):
            if _is_hidden(path.name):
                continue
            if path.is_dir():
                found.append(path)
            else:
                ignored.append(self._key(path))
        return found

    def _entry(self, path: Path, key: str, label: str, split: Split | None) -> Entry | None:
        try:
            if not stat.S_ISREG(path.stat().st_mode):
                return None  # opening a FIFO would wait for a writer
            state, start, group = retried(lambda: fingerprint(path))
        except NEVER_READABLE as error:
            raise UnusableError(key, f"cannot read it: {error.strerror}") from error
        except OSError as error:
            raise unreadable(path, error) from error
        if image_format(start) is not None:
            return Entry(key, label, state.st_size, str(path), split, group, state.st_mtime_ns)
        if path.suffix.lower() in IMAGE_ENDINGS:
            reason = "not a JPEG, PNG, GIF, BMP or WebP image" if start else "an empty file"
            raise UnusableError(key, reason)
        return None

    def _key(self, path: Path) -> str:
        return _readable(path.relative_to(self.location).as_posix())

    def _check(self, labels: Collection[str], ignored: Sequence[str]) -> None:
        if not labels:
            found = f"{len(ignored)} other files or folders" if ignored else "nothing"
            raise DataError(
                f"{self.location} has no folders of images: found {found}",
                hint="put the images into one folder per label, named after the label",
            )
        if len(labels) < 2:
            (label,) = labels
            hint = "put the images of each label into a folder of its own"
            if split_named(label) and self.options.folders == "auto":
                hint = f"convert {self.location / label} if its folders are the labels"
            raise DataError(
                f"{self.location} needs at least two labels, found only {label!r}",
                hint=hint,
            )


def _files(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not _is_hidden(name))
        for name in sorted(names):
            if not _is_hidden(name):
                yield Path(parent, name)


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name.lower() in _IGNORED_NAMES


def _readable(name: str) -> str:
    """Escape bytes that are not UTF-8, as keys and JSON require."""
    return os.fsencode(name).decode(errors="backslashreplace")


def _label(folder: Path) -> str:
    label = _readable(folder.name)
    if label != folder.name:
        raise DataError(f"the name of the label folder {label!r} is not UTF-8", hint="rename it")
    return label


def fingerprint(path: Path) -> tuple[os.stat_result, bytes, str]:
    """Return a file's state, its start, and a digest of its size, start and end.

    Few different images have equal ones, because their files start with sizes and tables and end
    with compressed data.
    """
    with path.open("rb", buffering=0) as file:
        state = os.fstat(file.fileno())
        start = file.read(_END_BYTES)
        end = os.pread(file.fileno(), _END_BYTES, max(len(start), state.st_size - _END_BYTES))
    content = b"%d:%b%b" % (state.st_size, start, end)
    return state, start, hashlib.blake2b(content, digest_size=16).hexdigest()

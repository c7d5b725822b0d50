"""Folders of images: ``<root>/[<split>/]<label>/**/<image>``.

Image files are recognised by their first bytes, as in TensorFlow's decoder, not by their names.
"""

from __future__ import annotations

import hashlib
import io
import os
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from timonel.data.manifest import Rejected
from timonel.data.schema import IMAGE_ENDINGS, IMAGE_FEATURE, ImageSchema, Split, split_named
from timonel.data.sources.base import (
    Description,
    Entry,
    Raw,
    RawFiles,
    Scan,
    Source,
    SourceOptions,
    UnusableError,
)
from timonel.data.sources.imagefile import SUPPORTED, image_format, verify_image
from timonel.data.sources.transient import NEVER_READABLE, retried, unreadable
from timonel.data.statistics import Statistics, merged, spread_of
from timonel.errors import DataError, NotFoundError
from timonel.storage.blobs import Blob
from timonel.storage.digests import digest_file
from timonel.storage.location import Location, revision_number
from timonel.storage.object_store import ObjectStore

INCOMPARABLE = "the server sends no checksums, so identical images are not found"
REQUESTS = 16
"""Requests at a time for sizes and checksums of remote images."""
_END_BYTES = 4096
_USUAL_BYTES = 1 << 17
_IGNORED_NAMES = frozenset({"thumbs.db", "desktop.ini"})


class ImageFolderSource(Source):
    """Image folders, one per label, nested to any depth, in path order.

    Top-level folders named train, validation and test, with label folders inside, are splits.
    """

    plugin: ClassVar[str] = "images"
    kind: ClassVar[str] = "images"

    @classmethod
    def recognises(cls, location: Location, options: SourceOptions) -> bool:  # noqa: ARG003 - by name
        """Tell whether ``location`` is a folder."""
        return location.is_dir()

    def reopen(self) -> None:
        """Do nothing: references of records are all that ``read`` needs."""

    def scan(self) -> Scan:
        """Find the images of all label folders."""
        ignored: list[str] = []
        rejected: list[Rejected] = []
        warnings: list[str] = []
        entries = self._find(ignored, rejected, warnings)
        return Scan(entries, "classification", ignored, rejected, warnings=warnings)

    def read(self, entry: Entry) -> Raw:
        """Read an image and verify it."""
        try:
            content = _content(entry.ref)
        except NEVER_READABLE as error:
            raise UnusableError(entry.key, f"cannot read it: {error.strerror}") from error
        except NotFoundError as error:
            raise UnusableError(entry.key, "not found") from error
        facts = verify_image(entry.key, content, self.options.check)
        return Raw({IMAGE_FEATURE: content}, facts)

    def digest(self, entry: Entry) -> str | None:
        """Return the digest of an image file."""
        if "://" in entry.ref:
            return entry.group  # the checksum of the store
        try:
            return digest_file(Path(entry.ref))
        except OSError:
            return None  # reading the record reports the error

    def describe(self, statistics: Mapping[Split, Statistics], files: RawFiles) -> Description:
        """Summarise formats and sizes of the images of all splits."""
        schema = image_schema(merged(statistics.values()), self.location)
        return Description(schema, files.digest, files.count, files.bytes)

    def _find(
        self, ignored: list[str], rejected: list[Rejected], warnings: list[str]
    ) -> Iterator[Entry]:
        labels: set[str] = set()
        comparable = True
        for split, label, folder in self._label_folders(ignored):
            is_empty = True
            for key, found in self._files(folder):
                try:
                    entry = image_entry(found, key, label, split)
                except UnusableError as error:
                    rejected.append(error.rejected)
                    is_empty = False
                    continue
                if entry is None:
                    ignored.append(key)
                    continue
                is_empty = False
                labels.add(label)
                comparable = comparable and entry.group is not None
                yield entry
            if is_empty:
                ignored.append(f"{self._key(folder)}/ (no images)")
        self._check(labels, ignored)
        ignored.sort()
        if not comparable:
            warnings.append(INCOMPARABLE)

    def _files(self, folder: Location) -> Iterator[tuple[str, str | RemoteImage]]:
        """Yield key and file of each file below a folder."""
        if folder.is_local:
            for path in _paths(folder.uri):
                yield self._key(path), path
            return
        for name, blob in ObjectStore(folder.uri).find().items():
            if not any(map(_is_hidden, name.split("/"))):
                place = folder / name
                yield self._key(place), RemoteImage(place.uri, blob)

    def _label_folders(self, ignored: list[str]) -> Iterator[tuple[Split | None, str, Location]]:
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

    def _are_splits(self, folders: Sequence[Location]) -> bool:
        """Tell whether the top-level folders are splits, including ``train``."""
        if self.options.folders != "auto":
            return self.options.folders == "splits"
        splits = {split_named(folder.name) for folder in folders} - {None}
        return len(splits) > 1 and "train" in splits

    def _folders(self, parent: Location, ignored: list[str]) -> list[Location]:
        folders, files = parent.children
        ignored.extend(self._key(parent / name) for name in files if not _is_hidden(name))
        return [parent / name for name in folders if not _is_hidden(name)]

    def _key(self, place: str | Location) -> str:
        return _readable(str(place).removeprefix(f"{self.location}/"))

    def _check(self, labels: Collection[str], ignored: Sequence[str]) -> None:
        if not labels:
            found = f"{len(ignored)} other files or folders" if ignored else "nothing"
            raise DataError(
                f"{self.location} has no folders of images: found {found}",
                hint="put the images into one folder per label, named after the label; name tables "
                "among other files with a pattern such as 'folder/*.csv'",
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


def image_schema(statistics: Statistics, location: Location) -> ImageSchema:
    """Return the schema of records with one image each."""
    images = statistics.images
    if images is None:
        raise DataError(f"{location} has no usable images")
    return ImageSchema(
        height=spread_of(images.heights),
        width=spread_of(images.widths),
        size=images.size if images.is_uniform else None,
        channels=1 if images.grey == images.heights.total() else 3,
        formats=dict(sorted(images.formats.items())),
    )


def image_entry(
    found: str | RemoteImage, key: str, label: str, split: Split | None
) -> Entry | None:
    """Return the entry of a file or a remote image; None if it is no image."""
    if isinstance(found, RemoteImage):
        if not found.uri.lower().endswith(IMAGE_ENDINGS):
            return None
        return found.entry(key, label, split)
    try:
        if not stat.S_ISREG(os.stat(found).st_mode):  # noqa: PTH116 - half the time of a Path
            return None  # opening a FIFO would wait for a writer
        state, start, group = retried(lambda: _fingerprint(found))
    except NEVER_READABLE as error:
        raise UnusableError(key, f"cannot read it: {error.strerror}") from error
    except OSError as error:
        raise unreadable(found, error) from error
    if image_format(start) is not None:
        return Entry(key, label, state.st_size, found, split, group, state.st_mtime_ns)
    if found.lower().endswith(IMAGE_ENDINGS):
        reason = f"not {SUPPORTED}" if start else "an empty file"
        raise UnusableError(key, reason)
    return None


@dataclass(frozen=True)
class RemoteImage:
    """Image in a bucket or on a web server, known by its listing."""

    uri: str
    blob: Blob

    def entry(self, key: str, label: str, split: Split | None) -> Entry:
        """Return its entry. Equal checksums make a group, so no image is read twice."""
        size = self.blob.size if self.blob.size > 0 else _USUAL_BYTES
        checksum = self.blob.md5 or self.blob.crc32c
        group = None if checksum is None else f"{checksum} {self.blob.size}"
        return Entry(key, label, size, self.uri, split, group, revision_number(self.blob))


def _paths(folder: str) -> Iterator[str]:
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not _is_hidden(name))
        for name in sorted(names):
            if not _is_hidden(name):
                yield f"{parent}/{name}"


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name.lower() in _IGNORED_NAMES


def _readable(name: str) -> str:
    """Escape bytes that are not UTF-8, as keys and JSON require."""
    return os.fsencode(name).decode(errors="backslashreplace")


def _label(folder: Location) -> str:
    label = _readable(folder.name)
    if label != folder.name:
        raise DataError(f"the name of the label folder {label!r} is not UTF-8", hint="rename it")
    return label


def _content(ref: str) -> bytes:
    if "://" in ref:
        return Location(ref).read()
    with io.FileIO(ref) as file:  # a third of the time of Path.read_bytes()
        return file.readall()


def _fingerprint(path: str) -> tuple[os.stat_result, bytes, str]:
    """Return a file's state, its start, and a digest of its size, start and end.

    Few different images have equal ones, because their files start with sizes and tables and end
    with compressed data.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # a third of the time of Path.open()
    try:
        state = os.fstat(descriptor)
        start = os.read(descriptor, _END_BYTES)
        end = os.pread(descriptor, _END_BYTES, max(len(start), state.st_size - _END_BYTES))
    finally:
        os.close(descriptor)
    content = b"%d:%b%b" % (state.st_size, start, end)
    return state, start, hashlib.blake2b(content, digest_size=16).hexdigest()

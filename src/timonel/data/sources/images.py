"""Folders of images: ``<root>/[<split>/]<label>/**/<image>``.

Image files are recognised by their first bytes, as in TensorFlow's decoder, not by their names.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from statistics import median_low
from typing import Any, ClassVar

from timonel.data.schema import IMAGE_FEATURE, ImageSchema, Split, Spread, split_named
from timonel.data.sources.base import Description, Entry, Raw, Scan, Source, UnusableError
from timonel.data.sources.imagefile import ImageFacts, image_format, verify_image
from timonel.errors import DataError
from timonel.storage.digests import digest_file, digest_lines

IMAGE_ENDINGS = (
    *(".jpg", ".jpeg", ".jpe", ".png", ".gif", ".bmp", ".webp"),
    *(".tif", ".tiff", ".heic", ".heif", ".avif", ".jp2", ".svg", ".ico"),
)
_END_BYTES = 4096
_IGNORED_NAMES = frozenset({"thumbs.db", "desktop.ini"})
_HINT = "convert it to JPEG or PNG, or skip such files with --skip-bad"


class ImageFolderSource(Source):
    """Image folders, one per label, nested to any depth, in path order.

    Top-level folders named train, validation and test, with label folders inside, are splits.
    """

    plugin: ClassVar[str] = "images"
    kind: ClassVar[str] = "images"

    @classmethod
    def recognises(cls, location: Path) -> bool:
        """Tell whether ``location`` is a folder."""
        return location.is_dir()

    def scan(self) -> Scan:
        """Find the images of all label folders."""
        entries: list[Entry] = []
        ignored: list[str] = []
        skipped: list[tuple[str, str]] = []
        for split, label, folder in self._label_folders(ignored):
            found = len(entries) + len(skipped)
            for path in _files(folder):
                key = self._key(path)
                try:
                    entry = self._entry(path, key, label, split)
                except UnusableError as error:
                    if not self.options.skip_bad:
                        raise
                    skipped.append((error.key, error.reason))
                else:
                    if entry is None:
                        ignored.append(key)
                    else:
                        entries.append(entry)
            if len(entries) + len(skipped) == found:
                ignored.append(f"{self._key(folder)}/ (no images)")
        self._check(entries, ignored)
        entries.sort(key=lambda entry: entry.key)
        return Scan(mark_duplicates(entries), "classification", sorted(ignored), skipped)

    def read(self, entry: Entry) -> Raw:
        """Read an image and decode it once to verify it."""
        path: Path = entry.ref
        try:
            content = path.read_bytes()
        except OSError as error:
            raise UnusableError(entry.key, f"cannot read it: {error.strerror}") from error
        return Raw({IMAGE_FEATURE: content}, verify_image(entry.key, content))

    def describe(self, facts: Mapping[str, Any], train: Sequence[Entry]) -> Description:  # noqa: ARG002 - sizes are of all splits
        """Summarise formats and sizes.

        The digest is that of a folder with just these files.
        """
        images: Sequence[ImageFacts] = list(facts.values())
        sizes = {(image.height, image.width) for image in images}
        schema = ImageSchema(
            height=_spread([image.height for image in images]),
            width=_spread([image.width for image in images]),
            size=sizes.pop() if len(sizes) == 1 else None,
            channels=1 if all(image.channels == 1 for image in images) else 3,
            formats=dict(sorted(Counter(image.format for image in images).items())),
        )
        lines = (f"{facts[key].digest} {facts[key].bytes} {key}" for key in sorted(facts))
        total = sum(image.bytes for image in images)
        return Description(schema, digest_lines(lines), len(images), total)

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
            mode = path.stat().st_mode
            if not stat.S_ISREG(mode):
                return None  # opening a FIFO would wait for a writer
            with path.open("rb") as file:
                start = file.read(16)
                size = os.fstat(file.fileno()).st_size
        except OSError as error:
            raise UnusableError(key, f"cannot read it: {error.strerror}") from error
        if image_format(start) is not None:
            return Entry(key, label, size, path, split)
        if path.suffix.lower() in IMAGE_ENDINGS:
            reason = "not a JPEG, PNG, GIF, BMP or WebP image" if start else "an empty file"
            raise UnusableError(key, reason, hint=_HINT)
        return None

    def _key(self, path: Path) -> str:
        return _readable(path.relative_to(self.location).as_posix())

    def _check(self, entries: Sequence[Entry], ignored: Sequence[str]) -> None:
        labels = sorted({entry.label for entry in entries})
        if not entries:
            found = f"{len(ignored)} other files or folders" if ignored else "nothing"
            raise DataError(
                f"{self.location} has no folders of images: found {found}",
                hint="put the images into one folder per label, named after the label",
            )
        if len(labels) < 2:
            hint = "put the images of each label into a folder of its own"
            if split_named(str(labels[0])) and self.options.folders == "auto":
                hint = f"convert {self.location / str(labels[0])} if its folders are the labels"
            raise DataError(
                f"{self.location} needs at least two labels, found only {labels[0]!r}",
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


def mark_duplicates(entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries, with ``group`` set to the digest of identical files.

    Files of equal size are compared by their first and last `_END_BYTES`; only those that match
    are read completely.
    """
    sizes = Counter(entry.size for entry in entries)
    suspects = [entry for entry in entries if sizes[entry.size] > 1]
    with ThreadPoolExecutor(thread_name_prefix="digest") as pool:
        ends = list(zip(suspects, pool.map(_ends, suspects), strict=True))
        counts = Counter(end for _, end in ends)
        suspects = [entry for entry, end in ends if end is not None and counts[end] > 1]
        digests = dict(
            zip((entry.key for entry in suspects), pool.map(_digest, suspects), strict=True)
        )
    groups = Counter(digests.values())
    return [
        replace(entry, group=digest)
        if (digest := digests.get(entry.key)) is not None and groups[digest] > 1
        else entry
        for entry in entries
    ]


def _ends(entry: Entry) -> bytes | None:
    """Return a digest of a file's size, start and end."""
    try:
        with entry.ref.open("rb") as file:
            start = file.read(_END_BYTES)
            file.seek(max(len(start), entry.size - _END_BYTES))
            end = file.read(_END_BYTES)
    except OSError:
        return None  # reading the record reports the error
    return hashlib.blake2b(b"%d:%b%b" % (entry.size, start, end), digest_size=16).digest()


def _digest(entry: Entry) -> str | None:
    try:
        return digest_file(entry.ref)
    except OSError:
        return None


def _spread(values: Sequence[int]) -> Spread:
    return Spread(minimum=min(values), median=median_low(values), maximum=max(values))

"""Folders of images: ``<root>/<label>/**/<image>`` or ``<root>/<split>/<label>/**/<image>``.

What is an image is decided by its first bytes, as TensorFlow's decoder does, not by its name.
"""

from __future__ import annotations

import hashlib
import io
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median_low
from typing import Any, ClassVar, Literal

from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.WebPImagePlugin import WebPImageFile

from timonel.data.schema import IMAGE_FEATURE, ImageFormat, ImageSchema, Split, Spread, split_named
from timonel.data.sources.base import Description, Entry, Raw, Scan, Source, UnusableError
from timonel.errors import DataError
from timonel.storage.digests import digest_file, digest_lines

_MAGIC: tuple[tuple[bytes, ImageFormat], ...] = (
    (b"\xff\xd8\xff", "jpeg"),
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"GIF87a", "gif"),
    (b"GIF89a", "gif"),
    (b"BM", "bmp"),
)
IMAGE_ENDINGS = (
    *(".jpg", ".jpeg", ".jpe", ".png", ".gif", ".bmp", ".webp"),
    *(".tif", ".tiff", ".heic", ".heif", ".avif", ".jp2", ".svg", ".ico"),
)
_READERS: dict[ImageFormat, Callable[..., ImageFile]] = {
    "jpeg": JpegImageFile,
    "png": PngImageFile,
    "gif": GifImageFile,
    "bmp": BmpImageFile,
    "webp": WebPImageFile,
}
_MAX_PIXELS = (1 << 29) // 3
"""TensorFlow decodes less than 2^29 bytes; Pillow refuses twice its limit, which is the same."""
_END_BYTES = 4096
_IGNORED_NAMES = frozenset({"thumbs.db", "desktop.ini"})
_GREY_MODES = frozenset({"1", "L", "LA", "I", "I;16", "I;16B", "I;16L"})
_HINT = "convert it to one of them, or skip such files with --skip-bad"


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """What is kept of an image that was verified."""

    format: ImageFormat
    height: int
    width: int
    channels: Literal[1, 3]
    bytes: int
    digest: str


class ImageFolderSource(Source):
    """One folder of images per label, of any depth, in the order of their paths.

    Folders named train, validation and test at the top, with label folders inside, are splits.
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
        """Read an image file and decode it once, to be sure that training can."""
        path: Path = entry.ref
        try:
            content = path.read_bytes()
        except OSError as error:
            raise UnusableError(entry.key, f"expected to read it, got {error.strerror}") from error
        return Raw({IMAGE_FEATURE: content}, _verify(entry.key, content))

    def describe(self, facts: Mapping[str, Any], train: Sequence[Entry]) -> Description:  # noqa: ARG002 - sizes are of all splits
        """Sum up formats and sizes; the digest is that of the folder holding just these files."""
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
                    hint="move it away, or give --folders labels if the folders name labels",
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
        """Tell whether the folders at the top are splits: ``train``, another, and labels inside."""
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
            raise UnusableError(key, f"expected to read it, got {error.strerror}") from error
        if _format(start) is not None:
            return Entry(key, label, size, path, split)
        if path.suffix.lower() in IMAGE_ENDINGS:
            what = "an empty file" if not start else "another format"
            reason = f"expected a JPEG, PNG, GIF, BMP or WebP image, got {what}"
            raise UnusableError(key, reason, hint=_HINT)
        return None

    def _key(self, path: Path) -> str:
        return _readable(path.relative_to(self.location).as_posix())

    def _check(self, entries: Sequence[Entry], ignored: Sequence[str]) -> None:
        labels = sorted({entry.label for entry in entries})
        if not entries:
            found = f"{len(ignored)} other files or folders" if ignored else "nothing"
            raise DataError(
                f"expected one folder of images per label in {self.location}, found {found}",
                hint="put the images into folders named after their labels",
            )
        if len(labels) < 2:
            hint = "put the images of each label into a folder of its own"
            if split_named(str(labels[0])) and self.options.folders == "auto":
                hint = f"convert {self.location / str(labels[0])} if its folders are the labels"
            raise DataError(
                f"expected at least two labels in {self.location}, found only {labels[0]!r}",
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
    """Return a name with escapes for bytes that are not UTF-8, as keys and JSON need it."""
    return os.fsencode(name).decode(errors="backslashreplace")


def _label(folder: Path) -> str:
    label = _readable(folder.name)
    if label != folder.name:
        raise DataError(f"the name of the label folder {label!r} is not UTF-8", hint="rename it")
    return label


def mark_duplicates(entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries of files, those of identical content with its digest as their group.

    Files of equal size are compared by their first and last `_END_BYTES`; only those that agree
    there are read whole.
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
    """Return a digest of a file's size, beginning and end."""
    try:
        with entry.ref.open("rb") as file:
            start = file.read(_END_BYTES)
            file.seek(max(len(start), entry.size - _END_BYTES))
            end = file.read(_END_BYTES)
    except OSError:
        return None  # reading the record says what is wrong
    return hashlib.blake2b(b"%d:%b%b" % (entry.size, start, end), digest_size=16).digest()


def _digest(entry: Entry) -> str | None:
    try:
        return digest_file(entry.ref)
    except OSError:
        return None


def _format(start: bytes) -> ImageFormat | None:
    if start[:4] == b"RIFF" and start[8:12] == b"WEBP":
        return "webp"
    return next((format_ for magic, format_ in _MAGIC if start.startswith(magic)), None)


def _verify(key: str, content: bytes) -> ImageFacts:
    format_ = _format(content)
    if format_ is None:
        raise UnusableError(key, "expected an image, got a file that changed during the conversion")
    try:
        # Image.open() would warn about large photographs; TensorFlow's own limit is what counts.
        with _READERS[format_](io.BytesIO(content)) as image:
            _check_pixels(key, image)
            channels: Literal[1, 3] = 1 if image.mode in _GREY_MODES else 3
            width, height = image.size
            # At an eighth of the size a JPEG's data is still read to its end, in a third of
            # the time; the transform that is saved cannot fail.
            image.draft(None, (1, 1))
            image.load()
    except UnusableError:
        raise
    except Exception as error:  # decoders raise whatever broken bytes lead them to
        raise UnusableError(
            key, f"expected a whole {format_.upper()} image, got: {error}"
        ) from error
    if format_ == "bmp" and content[28:30] != b"\x18\x00":
        depth = int.from_bytes(content[28:30], "little")
        reason = f"expected a BMP image of 24 bits per pixel, got {depth}"
        raise UnusableError(
            key, reason, hint="convert it to PNG, or skip such files with --skip-bad"
        )
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    return ImageFacts(format_, height, width, channels, len(content), digest)


def _check_pixels(key: str, image: ImageFile) -> None:
    width, height = image.size
    if width * height > _MAX_PIXELS:
        raise UnusableError(
            key,
            f"expected at most {_MAX_PIXELS:,} pixels, which TensorFlow decodes, "
            f"got {width:,} x {height:,}",
            hint="make it smaller, or skip such files with --skip-bad",
        )
    if image.format == "WEBP" and getattr(image, "is_animated", False):
        raise UnusableError(
            key,
            "expected a WebP image, got an animation, which TensorFlow does not decode",
            hint="convert it to PNG, or skip such files with --skip-bad",
        )


def _spread(values: Sequence[int]) -> Spread:
    return Spread(minimum=min(values), median=median_low(values), maximum=max(values))

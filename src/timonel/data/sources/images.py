"""Label folders: ``<root>/<label>/**/<image>``.

What is an image is decided by its first bytes, as TensorFlow's decoder does, not by its name.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median_low
from typing import Any, ClassVar, Literal

from PIL import Image

from timonel.data.schema import IMAGE_FEATURE, ImageFormat, ImageSchema, Spread
from timonel.data.sources.base import Description, Entry, Raw, Scan, Source, UnusableError
from timonel.errors import DataError
from timonel.storage.digests import digest_lines

_MAGIC: tuple[tuple[bytes, ImageFormat], ...] = (
    (b"\xff\xd8\xff", "jpeg"),
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"GIF87a", "gif"),
    (b"GIF89a", "gif"),
    (b"BM", "bmp"),
)
_IMAGE_ENDINGS = (
    *(".jpg", ".jpeg", ".jpe", ".png", ".gif", ".bmp"),
    *(".webp", ".tif", ".tiff", ".heic", ".heif", ".avif", ".jp2", ".svg", ".ico"),
)
_IGNORED_NAMES = frozenset({"thumbs.db", "desktop.ini"})
_GREY_MODES = frozenset({"1", "L", "LA", "I", "I;16", "I;16B", "I;16L"})
_HINT = "TensorFlow decodes JPEG, PNG, GIF and BMP: convert it, or skip such files with --skip-bad"


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
    """One folder of images per label, of any depth, in the order of their paths."""

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
        for label, folder in self._label_folders(ignored):
            found = len(entries) + len(skipped)
            for path in _files(folder):
                try:
                    entry = self._entry(path, label)
                except UnusableError as error:
                    if not self.options.skip_bad:
                        raise
                    skipped.append((error.key, error.reason))
                else:
                    if entry is None:
                        ignored.append(self._key(path))
                    else:
                        entries.append(entry)
            if len(entries) + len(skipped) == found:
                ignored.append(f"{label}/ (no images)")
        self._check(entries, ignored)
        entries.sort(key=lambda entry: entry.key)
        return Scan(entries, "classification", sorted(ignored), skipped)

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

    def _label_folders(self, ignored: list[str]) -> Iterator[tuple[str, Path]]:
        for path in sorted(self.location.iterdir()):
            if _is_hidden(path.name):
                continue
            if path.is_dir():
                yield path.name, path
            else:
                ignored.append(path.name)

    def _entry(self, path: Path, label: str) -> Entry | None:
        try:
            with path.open("rb") as file:
                start = file.read(16)
                size = os.fstat(file.fileno()).st_size
        except OSError as error:
            raise UnusableError(
                self._key(path), f"expected to read it, got {error.strerror}"
            ) from error
        if _format(start) is not None:
            return Entry(self._key(path), label, size, path)
        if path.suffix.lower() in _IMAGE_ENDINGS:
            what = "an empty file" if not start else "another format"
            reason = f"expected a JPEG, PNG, GIF or BMP image, got {what}"
            raise UnusableError(self._key(path), reason, hint=_HINT)
        return None

    def _key(self, path: Path) -> str:
        return path.relative_to(self.location).as_posix()

    def _check(self, entries: Sequence[Entry], ignored: Sequence[str]) -> None:
        labels = sorted({entry.label for entry in entries})
        if not entries:
            found = f"{len(ignored)} other files or folders" if ignored else "nothing"
            raise DataError(
                f"expected one folder of images per label in {self.location}, found {found}",
                hint="put the images into folders named after their labels",
            )
        if len(labels) < 2:
            raise DataError(
                f"expected at least two labels in {self.location}, found only {labels[0]!r}",
                hint="put the images of each label into a folder of its own",
            )


def _files(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not _is_hidden(name))
        for name in sorted(names):
            if not _is_hidden(name):
                yield Path(parent, name)


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name.lower() in _IGNORED_NAMES


def _format(start: bytes) -> ImageFormat | None:
    return next((format_ for magic, format_ in _MAGIC if start.startswith(magic)), None)


def _verify(key: str, content: bytes) -> ImageFacts:
    format_ = _format(content)
    if format_ is None:
        raise UnusableError(key, "expected an image, got a file that changed during the conversion")
    try:
        with Image.open(io.BytesIO(content), formats=(format_,)) as image:
            channels: Literal[1, 3] = 1 if image.mode in _GREY_MODES else 3
            width, height = image.size
            # At an eighth of the size a JPEG's data is still read to its end, in a third of
            # the time; the transform that is saved cannot fail.
            image.draft(None, (1, 1))
            image.load()
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


def _spread(values: Sequence[int]) -> Spread:
    return Spread(minimum=min(values), median=median_low(values), maximum=max(values))

"""Columns with images: pictures and masks, as files or as bytes."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image as PillowImage

from timonel.data.schema import ImageCheck, ImageColumn, MaskColumn, columns_option
from timonel.data.sources.imagefile import image_format, verify_image
from timonel.data.sources.kinds.base import (
    Kind,
    ReadFile,
    Value,
    expected,
    is_empty,
    lengths_of,
    parse_list,
)
from timonel.data.statistics import ImageFacts, ImageStatistics, Statistics, ValueFacts, spread_of
from timonel.errors import DataError

_AN_IMAGE = "the path of an image file, or its bytes"
_FORMATS = "a JPEG, PNG, GIF, BMP or WebP image"
_MAX_CLASS = 255


class Image(Kind):
    """Images, one or several per row."""

    type = "image"

    def __init__(self, check: ImageCheck = "structure") -> None:
        self._check = check

    def parse(self, value: Any, read: ReadFile) -> Value:
        """Accept a path, bytes, or a list; in text files a JSON list or paths between bars."""
        contents, facts = [], []
        for item in files_of(value):
            content = _content(item, read)
            facts.append(_verified(item, content, self._check))
            contents.append(content)
        return Value(tuple(contents), ValueFacts(length=len(facts), images=facts))

    def describe(self, name: str, everything: Statistics, train: Statistics) -> ImageColumn:  # noqa: ARG002 - none is missing
        """Describe sizes and formats of all splits."""
        counts = lengths_of(name, everything)
        images = everything.column_images.get(name, ImageStatistics())
        return ImageColumn(
            name=name,
            **_sizes(name, images),
            channels=1 if images.grey == images.heights.total() else 3,
            fewest=int(counts.minimum or 0),
            most=int(counts.maximum or 0),
        )


class Mask(Kind):
    """Images of class numbers, one per row.

    TensorFlow would decode the colours of a palette, and scale more than 8 bits. Masks are
    therefore stored as grey images of 8 bits.
    """

    type = "mask"

    def parse(self, value: Any, read: ReadFile) -> Value:
        """Accept the path or bytes of a grey image, or of one with a palette."""
        found = files_of(value)
        if len(found) != 1:
            raise expected("one mask", value)
        content = _content(found[0], read)
        facts = _verified(found[0], content, "decode")
        if facts.format not in {"png", "bmp", "gif"}:
            raise ValueError(f"{facts.format.upper()} changes class numbers: use PNG for masks")
        with PillowImage.open(io.BytesIO(content)) as image:
            if image.mode not in {"1", "L", "P", "I", "I;16"}:
                raise ValueError(f"a mask has class numbers, not colours ({image.mode})")
            pixels, mode = np.asarray(image), image.mode
        classes = np.unique(pixels)
        if classes[-1] > _MAX_CLASS:
            raise expected(f"class numbers up to {_MAX_CLASS}", int(classes[-1]))
        if mode != "L" or facts.format != "png":
            content = _grey_png(pixels)
        words = [str(int(each)) for each in classes]
        return Value(content, ValueFacts(length=1, words=words, images=[facts]))

    def describe(self, name: str, everything: Statistics, train: Statistics) -> MaskColumn:  # noqa: ARG002 - none is missing
        """Describe sizes and classes of all splits."""
        images = everything.column_images.get(name, ImageStatistics())
        words = everything.words.get(name)
        classes = sorted(map(int, words.counts)) if words else []
        return MaskColumn(name=name, **_sizes(name, images), classes=tuple(classes))


def files_of(value: Any) -> list[str | bytes]:
    """Return the paths and bytes of a value."""
    if is_empty(value):
        raise expected(_AN_IMAGE, value)
    if isinstance(value, dict):  # as in datasets of Hugging Face
        value = value.get("bytes") or value.get("path")
    if isinstance(value, str):
        listed = (
            parse_list(value, _AN_IMAGE) if value.lstrip().startswith("[") else value.split("|")
        )
        return [_path(item) for item in listed]
    if isinstance(value, bytes):
        return [value]
    if not isinstance(value, list | tuple):
        raise expected(_AN_IMAGE, value)
    return [item for each in value for item in files_of(each)]


def _path(item: Any) -> str:
    if not isinstance(item, str) or not item.strip():
        raise expected(_AN_IMAGE, item)
    return item.strip()


def _content(item: str | bytes, read: ReadFile) -> bytes:
    return item if isinstance(item, bytes) else read(item)


def _verified(item: str | bytes, content: bytes, check: ImageCheck) -> ImageFacts:
    if image_format(content[:12]) is None:
        raise expected(_FORMATS, item if isinstance(item, str) else content[:12])
    return verify_image(item if isinstance(item, str) else "bytes", content, check)


def _grey_png(pixels: Any) -> bytes:
    buffer = io.BytesIO()
    PillowImage.fromarray(pixels.astype(np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def _sizes(name: str, images: ImageStatistics) -> dict[str, Any]:
    if not images.heights:
        raise DataError(
            f"column {name!r} has no images", hint=f"use {columns_option(name, 'drop')}"
        )
    return {
        "height": spread_of(images.heights),
        "width": spread_of(images.widths),
        "size": images.size if images.is_uniform else None,
        "formats": dict(sorted(images.formats.items())),
    }

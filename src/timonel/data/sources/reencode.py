"""Scale and re-encode verified images, if the user asks for it."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from typing import Any

from PIL import Image, ImageOps

from timonel.data.schema import ImageFormat
from timonel.data.sources.base import Raw, SourceOptions
from timonel.data.statistics import ImageFacts

_DEFAULT_QUALITY = 90
_QUARTER_TURNS = frozenset({5, 6, 7, 8})
"""EXIF orientations that swap height and width."""
_WIDE_MODES = ("I", "I;16", "I;16B", "I;16L")


def reencoded(raw: Raw, options: SourceOptions) -> Raw:
    """Return a record with its images as the options ask for; masks stay as they are.

    Images with an EXIF orientation become upright, except in columns: masks and boxes refer to the
    stored pixels. Facts keep the digest and size of the source's file.
    """
    if options.image_size is None and options.image_format is None and options.quality is None:
        return raw
    features = dict(raw.features)
    if raw.image is not None:
        (name,) = features
        features[name], image = _image(features[name], raw.image, options, is_rotated=True)
        return replace(raw, features=features, image=image)
    facts = dict(raw.facts)
    for name, found in raw.facts.items():
        if not found.images or found.words:  # a mask has words: its classes
            continue
        contents: Any = features[name]
        pairs = zip(contents, found.images, strict=True)
        done = [_image(content, image, options) for content, image in pairs]
        features[name] = tuple(content for content, _ in done)
        facts[name] = replace(found, images=tuple(image for _, image in done))
    return replace(raw, features=features, facts=facts)


def _image(
    content: Any, facts: ImageFacts, options: SourceOptions, *, is_rotated: bool = False
) -> tuple[bytes, ImageFacts]:
    is_turned = is_rotated and facts.orientation in _QUARTER_TURNS
    if is_turned:
        facts = replace(facts, height=facts.width, width=facts.height)
    height, width = _size(facts, options.image_size)
    format_ = _format(facts, options.image_format)
    is_lossy = format_ in {"jpeg", "webp"}
    is_kept = (height, width) == (facts.height, facts.width) and format_ == facts.format
    is_kept = is_kept and not (is_rotated and facts.orientation != 1)
    if is_kept and not (is_lossy and options.quality is not None):
        return content, facts
    with Image.open(io.BytesIO(content)) as opened:
        opened.draft(None, (height, width) if is_turned else (width, height))
        upright = ImageOps.exif_transpose(opened) if is_rotated else opened
        pixels = _plain(upright, keeps_alpha=format_ == "png")
    if pixels.size != (width, height):
        # Band by band: resizing RGBA would blacken what is transparent, which load() shows.
        bands = [band.resize((width, height), Image.Resampling.LANCZOS) for band in pixels.split()]
        pixels = Image.merge(pixels.mode, bands)
    buffer = io.BytesIO()
    quality = {"quality": options.quality or _DEFAULT_QUALITY} if is_lossy else {}
    pixels.save(buffer, format_.upper(), **quality)
    orientation = 1 if is_rotated else facts.orientation
    changed = replace(facts, format=format_, height=height, width=width, orientation=orientation)
    return buffer.getvalue(), changed


def _size(facts: ImageFacts, target: tuple[int, int] | None) -> tuple[int, int]:
    """Return the smallest size with the same aspect ratio that covers the target size."""
    if target is None:
        return facts.height, facts.width
    factor = max(target[0] / facts.height, target[1] / facts.width)
    if factor >= 1:
        return facts.height, facts.width
    height, width = (math.ceil(side * factor - 1e-6) for side in (facts.height, facts.width))
    return height, width


def _format(facts: ImageFacts, asked: ImageFormat | None) -> ImageFormat:
    """Return the format to write; Pillow's GIF and BMP are no better than PNG."""
    if asked is not None:
        return asked
    return "png" if facts.format in {"gif", "bmp"} else facts.format


def _plain(image: Any, *, keeps_alpha: bool) -> Any:
    """Return an image with 8 bits per channel, with the pixels that TensorFlow decodes."""
    if keeps_alpha and image.has_transparency_data:
        return image.convert("RGBA")
    if image.mode in _WIDE_MODES:
        import numpy as np  # noqa: PLC0415 - 100 ms that converting images does not need

        return Image.fromarray((np.asarray(image).astype(np.uint32) >> 8).astype(np.uint8))
    return image.convert("L" if image.mode in {"1", "L", "LA"} else "RGB")

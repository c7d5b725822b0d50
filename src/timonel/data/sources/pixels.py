"""Images as TFRecorder stores them: pixels in base64 beside their size."""

from __future__ import annotations

import base64
import binascii
import io
from collections.abc import Mapping, Sequence
from typing import Any

from PIL import Image

from timonel.data.examples import Feature
from timonel.data.sources.base import UnusableError

FEATURES = frozenset({"image", "image_height", "image_width", "image_channels"})
"""Features that tell TFRecorder's records from others."""

_ALPHABET = b"-_"


def encode_pixels(content: bytes) -> dict[str, Feature]:
    """Decode an image to the features of TFRecorder that describe it."""
    with Image.open(io.BytesIO(content)) as image:
        grey = image.mode in {"1", "L"}
        pixels = image.convert("L" if grey else "RGB")
    return {
        "image": base64.b64encode(pixels.tobytes(), altchars=_ALPHABET),
        "image_channels": 1 if grey else 3,
        "image_height": pixels.height,
        "image_width": pixels.width,
    }


def decode_pixels(key: str, features: Mapping[str, Sequence[Any]]) -> bytes:
    """Return the image of a record of TFRecorder as PNG."""
    try:
        pixels = base64.b64decode(features["image"][0], altchars=_ALPHABET, validate=True)
        (height,), (width,), (channels,) = (
            features[f"image_{name}"] for name in ("height", "width", "channels")
        )
        # TFRecorder counted the channels of images with transparency as 1 or 3.
        depth, rest = divmod(len(pixels), height * width)
        mode = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}[0 if rest else depth]
        image = Image.frombytes(mode, (width, height), pixels)
    except (binascii.Error, IndexError, KeyError, ValueError, ZeroDivisionError) as error:
        raise UnusableError(key, "the image's pixels do not fit its size") from error
    file = io.BytesIO()
    image.convert("L" if channels == 1 else "RGB").save(file, "PNG")
    return file.getvalue()

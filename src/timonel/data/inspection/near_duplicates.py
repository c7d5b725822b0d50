"""Find images that look the same, such as a photograph that was resized or saved again.

Each image has a difference hash of 256 bits: whether a pixel of its 17 x 16 thumbnail is brighter
than the one to its left. Hashes that differ in few bits are neighbours in one of several sorted
orders, each by other bits first, so only neighbours are compared: the time is almost linear in the
number of images, and memory is bounded.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from PIL import Image

from timonel.data.sources.imagefile import open_image

MAX_DISTANCE = 40
"""Bits of two near-duplicates that differ, at most.

Of 500,000 pairs of different photographs, none had fewer than 64; of copies saved with quality 30,
halved or cropped by 1 %, at least 97 % had at most 40.
"""
MIN_SIDE = 16
"""Smaller images are not compared: their hashes have too few bits to tell them apart."""
_SIDE = 16
_WINDOW = 16
_MIN_CORRELATION = 0.97
"""Correlation of two thumbnails of near-duplicates; 99 % of the copies above have more."""
_MIN_CONTRAST = 8.0
"""Standard deviation of grey levels below which an image is flat: all flat images look the same."""
_SCALE = 32
# Bits next to each other are alike. Each order starts with bits from the whole image.
_ORDER = np.random.default_rng(0).permutation(_SIDE * _SIDE)

Hashes = npt.NDArray[np.uint8]
"""Difference hashes [N, 32]."""
Thumbnails = npt.NDArray[np.int8]
"""Normalised grey levels [N, 64]."""


def signature_of(content: bytes) -> tuple[bytes, bytes] | None:
    """Return hash (32 bytes) and thumbnail (64 bytes) of an encoded image.

    None if the image is too small or damaged, or none that TensorFlow decodes.
    """
    try:
        with open_image(content) as image:  # type: ignore[union-attr] # None is caught below
            if min(image.size) < MIN_SIDE:
                return None
            # A JPEG is decoded at a fraction of its size.
            image.draft("L", (2 * _SIDE + 2, 2 * _SIDE + 2))
            small = image.convert("L").resize((_SIDE + 1, _SIDE), Image.Resampling.BOX)
    except Exception:  # noqa: BLE001 - decoders raise all kinds of exceptions
        return None
    pixels = np.asarray(small, np.int16)
    is_brighter = pixels[:, 1:] > pixels[:, :-1]
    halves = pixels[:, :_SIDE].reshape(_SIDE // 2, 2, _SIDE // 2, 2).mean((1, 3)).ravel()
    levels = (halves - halves.mean()) / max(float(halves.std()), _MIN_CONTRAST)
    thumbnail = np.clip(np.round(levels * _SCALE), -127, 127).astype(np.int8)
    return np.packbits(is_brighter.ravel()[_ORDER]).tobytes(), thumbnail.tobytes()


def find_copies(
    hashes: Hashes,
    thumbnails: Thumbnails,
    splits: npt.NDArray[np.int8],
    labels: npt.NDArray[np.int64],
) -> list[tuple[int, int, int]]:
    """Find images with a near-duplicate in an earlier split, or with another label.

    From hashes [N, 32], thumbnails [N, 64], numbers of splits [N], train first, and labels [N].
    Returns each such image, its closest near-duplicate of these and their distance, the closest
    first.
    """
    words = np.ascontiguousarray(hashes).view(np.uint64)
    best = np.full(len(hashes), np.iinfo(np.int64).max)
    for start in range(hashes.shape[1]):
        turned = np.take(hashes, np.arange(start, start + 8), axis=1, mode="wrap")
        order = np.argsort(turned.view(">u8").ravel(), kind="stable")
        for step in range(1, min(_WINDOW, len(order) - 1) + 1):
            one, other = order[:-step], order[step:]
            differ = (splits[one] != splits[other]) | (labels[one] != labels[other])
            one, other = one[differ], other[differ]
            distance = np.bitwise_count(words[one] ^ words[other]).sum(1, dtype=np.int64)
            near = distance <= MAX_DISTANCE
            one, other, distance = one[near], other[near], distance[near]
            alike = _correlation(thumbnails[one], thumbnails[other]) >= _MIN_CORRELATION
            one, other, distance = one[alike], other[alike], distance[alike]
            swap = (splits[one] < splits[other]) | ((splits[one] == splits[other]) & (one < other))
            copy, original = np.where(swap, other, one), np.where(swap, one, other)
            np.minimum.at(best, copy, distance << 32 | original)
    found = np.flatnonzero(best < np.iinfo(np.int64).max)
    found = found[np.argsort(best[found] >> 32, kind="stable")]
    return [(int(i), int(best[i] & 0xFFFFFFFF), int(best[i] >> 32)) for i in found]


def _correlation(one: Thumbnails, other: Thumbnails) -> npt.NDArray[np.float64]:
    products = one.astype(np.float64) * other
    return np.asarray(products.mean(1) / _SCALE**2)

"""Verify that TensorFlow can decode encoded images.

Pillow decodes them. It accepts some damage that TensorFlow's decoders reject: a PNG without its
end, a BMP whose length differs from its header, a GIF with colours outside its map. The structure
of these three is checked here; `docs/design/data.md` lists what is not detected.
"""

from __future__ import annotations

import hashlib
import io
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.WebPImagePlugin import WebPImageFile

from timonel.data.schema import ImageFormat
from timonel.data.sources.base import UnusableError
from timonel.data.statistics import ImageFacts

_PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
_MAGIC: tuple[tuple[bytes, ImageFormat], ...] = (
    (b"\xff\xd8\xff", "jpeg"),
    (_PNG_MAGIC, "png"),
    (b"GIF87a", "gif"),
    (b"GIF89a", "gif"),
    (b"BM", "bmp"),
)
SUPPORTED = "a JPEG, PNG, GIF, BMP or WebP image"
_READERS: dict[ImageFormat, Callable[..., ImageFile]] = {
    "jpeg": JpegImageFile,
    "png": PngImageFile,
    "gif": GifImageFile,
    "bmp": BmpImageFile,
    "webp": WebPImageFile,
}
_MAX_PIXELS = (1 << 29) // 3
"""TensorFlow decodes less than 2^29 bytes.

Pillow rejects twice its limit, which is the same.
"""
_GREY_MODES = frozenset({"1", "L", "LA", "I", "I;16", "I;16B", "I;16L"})


def image_format(start: bytes) -> ImageFormat | None:
    """Return the format from at least 12 first bytes; None if unsupported."""
    if start[:4] == b"RIFF" and start[8:12] == b"WEBP":
        return "webp"
    return next((format_ for magic, format_ in _MAGIC if start.startswith(magic)), None)


def open_image(content: bytes) -> ImageFile | None:
    """Open an encoded image without decoding it; None if it is none that TensorFlow decodes.

    Raises:
        Exception: Its header is damaged; the decoders raise all kinds.
    """
    format_ = image_format(content)
    return None if format_ is None else _READERS[format_](io.BytesIO(content))


def verify_image(key: str, content: bytes) -> ImageFacts:
    """Decode an image once and return its facts.

    Args:
        key: The image's name in errors.
        content: The encoded image.

    Raises:
        UnusableError: The image is damaged, or TensorFlow cannot decode its kind.
    """
    format_ = image_format(content)
    if format_ is None:
        raise UnusableError(key, f"not {SUPPORTED}")
    try:
        # Image.open() would warn about large photographs; only TensorFlow's own limit matters.
        with _READERS[format_](io.BytesIO(content)) as image:
            _check_kind(key, image, content)
            channels: Literal[1, 3] = 1 if image.mode in _GREY_MODES else 3
            width, height = image.size
            # At an eighth of the size, a JPEG's data is still read to its end, in a third of the
            # time; the skipped part of the transform cannot fail.
            image.draft(None, (1, 1))
            image.load()
            if format_ == "png":
                _check_png(content)
            elif format_ == "bmp":
                _check_bmp(content, width, height)
            elif format_ == "gif":
                width, height = _check_gif(content, image)
    except UnusableError:
        raise
    except Exception as error:  # decoders raise all kinds of exceptions on broken input
        raise UnusableError(key, f"damaged {format_.upper()} image: {error}") from error
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    return ImageFacts(format_, height, width, channels, len(content), digest)


def _check_kind(key: str, image: ImageFile, content: bytes) -> None:
    """Reject intact images that TensorFlow cannot decode."""
    width, height = image.size
    if width * height > _MAX_PIXELS:
        raise UnusableError(
            key,
            f"the image has {width:,} x {height:,} pixels, but TensorFlow decodes at most "
            f"{_MAX_PIXELS:,}",
        )
    if image.format == "WEBP" and getattr(image, "is_animated", False):
        reason = "TensorFlow cannot decode animated WebP images: convert it to PNG"
        raise UnusableError(key, reason)
    if image.format == "WEBP" and image.mode == "RGBA":
        reason = "a WebP image with transparency, which load() cannot remove: convert it to PNG"
        raise UnusableError(key, reason)
    if image.format == "BMP" and (depth := struct.unpack_from("<H", content, 28)[0]) != 24:
        reason = f"TensorFlow decodes BMP images of 24 bits per pixel only, not {depth}"
        raise UnusableError(key, reason)


def _check_png(content: bytes) -> None:
    """Check the chunks up to the last one.

    Checksums of optional chunks are not checked, as in TensorFlow.
    """
    place, kind = len(_PNG_MAGIC), b""
    while kind != b"IEND":
        if place + 12 > len(content):
            raise ValueError("it is truncated")
        length, kind = struct.unpack_from(">I4s", content, place)
        end = place + 8 + length
        if end + 4 > len(content):
            raise ValueError("it is truncated")
        if not kind.isalpha():
            raise ValueError("a chunk without a name")
        is_optional = kind[0] & 0x20
        if not is_optional:
            (checksum,) = struct.unpack_from(">I", content, end)
            if zlib.crc32(memoryview(content)[place + 4 : end]) != checksum:
                raise ValueError(f"a wrong checksum of the chunk {kind.decode('latin-1')}")
        place = end + 4


def _check_bmp(content: bytes, width: int, height: int) -> None:
    (header,) = struct.unpack_from("<i", content, 10)
    expected = header + (3 * width + 3) // 4 * 4 * height
    if len(content) != expected:
        raise ValueError(f"{len(content):,} bytes instead of {expected:,}")


@dataclass(frozen=True, slots=True)
class _GifFrame:
    """GIF frame: position, size of its colour map, and transparent index.

    The box is left, top, right and bottom in pixels.
    """

    box: tuple[int, int, int, int]
    colours: int
    transparent: int | None


def _check_gif(content: bytes, image: ImageFile) -> tuple[int, int]:
    """Return the decoded width and height: the largest of all frames."""
    try:
        first, *_ = frames = list(_gif_frames(content))
    except (IndexError, struct.error) as error:
        raise ValueError("it is truncated") from error
    counts = image.crop(first.box).histogram()  # pixels of the first frame are indices, not colours
    if first.transparent is not None:
        counts[first.transparent] = 0
    if any(counts[first.colours :]):
        raise ValueError(f"a colour outside of its map of {first.colours}")
    widths = [right - left for left, _, right, _ in (frame.box for frame in frames)]
    heights = [bottom - top for _, top, _, bottom in (frame.box for frame in frames)]
    if not min(widths) or not min(heights):
        raise ValueError("a frame without pixels")
    for number in range(1, len(frames)):
        image.seek(number)
        image.load()
    return max(widths), max(heights)


def _gif_frames(content: bytes) -> Iterator[_GifFrame]:
    file = io.BytesIO(content)
    colours = _skip_colours(file, file.read(13)[10])
    transparent, is_first = None, True
    while (kind := file.read(1)) not in {b";", b""}:
        if kind == b"!":
            label = file.read(1)
            block = _sub_blocks(file)
            if label == b"\xf9":
                transparent = block[3] if block[0] & 1 else None
        elif kind == b",":
            left, top, width, height, flags = struct.unpack("<4HB", file.read(9))
            own = _skip_colours(file, flags)
            if file.read(1)[0] > 8:
                raise ValueError("a frame with codes of more than 8 bits")
            _sub_blocks(file)
            box = (left, top, left + width, top + height)
            yield _GifFrame(box, own or colours, transparent)
            is_first = False
        elif is_first:
            raise ValueError(f"a block of the unknown type {kind[0]:#04x}")
        else:
            return


def _skip_colours(file: io.BytesIO, flags: int) -> int:
    """Skip a colour map and return its number of colours."""
    if not flags & 0x80:
        return 0
    colours = 2 << (flags & 7)
    file.seek(3 * colours, io.SEEK_CUR)
    return colours


def _sub_blocks(file: io.BytesIO) -> bytes:
    """Return the data of a chain of sub-blocks."""
    parts = []
    while size := file.read(1)[0]:
        parts.append(file.read(size))
    return b"".join(parts)

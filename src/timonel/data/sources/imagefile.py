"""Verify that TensorFlow can decode encoded images.

The structure check walks through the segments of a JPEG and the chunks of a PNG with their
checksums. The decode check lets Pillow decode them too. Other formats are always decoded. Pillow
accepts some damage that TensorFlow's decoders reject: a JPEG with an unknown marker, a PNG without
its end, a BMP whose length differs from its header, a GIF with colours outside its map.
`docs/design/data.md` has what each check detects.
"""

from __future__ import annotations

import hashlib
import io
import math
import re
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from PIL import Image
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.WebPImagePlugin import WebPImageFile

from timonel.data.schema import ImageCheck, ImageFormat
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

_JPEG_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")
"""Marker that ends the data of a scan: no restart marker, and no escaped byte of data."""
_JPEG_BARE = frozenset({0x00, 0x01, *range(0xD0, 0xD8)})
"""Markers without a length."""
_JPEG_FRAMES = frozenset({0xC0, 0xC1, 0xC2, 0xC9, 0xCA})
_JPEG_SCAN = 0xDA
_JPEG_EXIF = 0xE1
_JPEG_END = 0xD9
_JPEG_SEGMENTS = _JPEG_FRAMES | {0xC4, 0xCC, _JPEG_SCAN, 0xDB, 0xDC, 0xDD, *range(0xE0, 0xF0), 0xFE}
_JPEG_MODES = {1: "L", 3: "RGB", 4: "CMYK"}
_EXIF = b"Exif\0\0"
_ORIENTATION = 0x0112
_TRUNCATED = "it is truncated"


def image_format(start: bytes) -> ImageFormat | None:
    """Return the format from at least 12 first bytes; None if unsupported."""
    if start[:4] == b"RIFF" and start[8:12] == b"WEBP":
        return "webp"
    return next((format_ for magic, format_ in _MAGIC if start.startswith(magic)), None)


def open_image(content: bytes) -> ImageFile | None:
    """Open an encoded image without decoding it; None if it is none that TensorFlow decodes."""
    format_ = image_format(content)
    return None if format_ is None else _READERS[format_](io.BytesIO(content))


def verify_image(key: str, content: bytes, check: ImageCheck = "structure") -> ImageFacts:
    """Verify an image and return its facts.

    Formats other than JPEG and PNG are always decoded, as their structure says little of the data.
    """
    format_ = image_format(content)
    if format_ is None:
        raise UnusableError(key, f"not {SUPPORTED}")
    try:
        if format_ == "jpeg":
            shape = _verify_jpeg(key, content, check)
        else:
            shape = _verify_other(key, content, format_, check)
    except UnusableError:
        raise
    except Exception as error:  # decoders raise all kinds of exceptions on broken input
        raise UnusableError(key, f"damaged {format_.upper()} image: {error}") from error
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    height, width, channels, orientation = shape
    return ImageFacts(format_, height, width, channels, len(content), digest, orientation)


class _Shape(NamedTuple):
    height: int
    width: int
    channels: Literal[1, 3]
    orientation: int


def _verify_jpeg(key: str, content: bytes, check: ImageCheck) -> _Shape:
    try:
        height, width, components, exif = _jpeg_frame(content)
    except (IndexError, struct.error) as error:
        raise ValueError(_TRUNCATED) from error
    _check_pixels(key, width, height)
    if check == "decode":
        # At an eighth of the size, all data is still read to its end, in a third of the time; the
        # skipped part of the transform cannot fail. JpegImageFile would take 20 % more.
        size = math.ceil(width / 8), math.ceil(height / 8)
        mode = _JPEG_MODES[components]
        Image.frombytes(mode, size, content, "jpeg", mode, "", 8, 0)
    return _Shape(height, width, 1 if components == 1 else 3, _orientation(exif))


def _jpeg_frame(content: bytes) -> tuple[int, int, int, bytes]:
    """Walk through all segments; return height, width, components and EXIF data."""
    place, frame, has_scan, exif = 2, (0, 0, 0, 0), False, b""
    while True:
        place = content.find(b"\xff", place)  # decoders skip other bytes between segments
        if place < 0:
            raise ValueError(_TRUNCATED)
        marker = content[place + 1]
        if marker == _JPEG_END:
            break
        place += 1 if marker == 0xFF else 2
        if marker == 0xFF or marker in _JPEG_BARE:
            continue
        if marker not in _JPEG_SEGMENTS:
            raise ValueError(f"the unknown marker {marker:#04x} in its data")
        if marker in _JPEG_FRAMES:
            frame = struct.unpack_from(">BHHB", content, place + 2)
        start = place + 2
        place += struct.unpack_from(">H", content, place)[0]
        if marker == _JPEG_EXIF and content.startswith(_EXIF, start):
            exif = content[start:place]
        if marker == _JPEG_SCAN:
            has_scan = True
            found = _JPEG_MARKER.search(content, place)
            place = len(content) if found is None else found.start()
    bits, height, width, components = frame
    if not has_scan or bits != 8 or components not in _JPEG_MODES or not height or not width:
        raise ValueError("it has no image of a known kind")
    return height, width, components, exif


def _orientation(exif: bytes) -> int:
    """Return the orientation of EXIF data, from 1 (upright) to 8; 1 if it has none."""
    tiff = exif.removeprefix(_EXIF)
    order = "<" if tiff.startswith(b"II") else ">"
    try:
        (start,) = struct.unpack_from(f"{order}I", tiff, 4)
        (count,) = struct.unpack_from(f"{order}H", tiff, start)
        for place in range(start + 2, start + 2 + 12 * count, 12):
            tag, _, _, value = struct.unpack_from(f"{order}HHIH", tiff, place)
            if tag == _ORIENTATION:
                return value if 1 <= value <= 8 else 1
    except struct.error:  # decoders ignore damaged EXIF data
        pass
    return 1


def _verify_other(key: str, content: bytes, format_: ImageFormat, check: ImageCheck) -> _Shape:
    # Image.open() would warn about large photographs; only TensorFlow's own limit matters.
    with _READERS[format_](io.BytesIO(content)) as image:
        width, height = image.size
        _check_pixels(key, width, height)
        _check_kind(key, image, content)
        channels: Literal[1, 3] = 1 if image.mode in _GREY_MODES else 3
        if format_ == "png":
            _check_png(content)
        if check == "decode" or format_ != "png":
            image.load()
        if format_ == "bmp":
            _check_bmp(content, width, height)
        elif format_ == "gif":
            width, height = _check_gif(content, image)
        orientation = _orientation(image.info.get("exif", b""))
    return _Shape(height, width, channels, orientation)


def _check_pixels(key: str, width: int, height: int) -> None:
    if width * height > _MAX_PIXELS:
        raise UnusableError(
            key,
            f"the image has {width:,} x {height:,} pixels, but TensorFlow decodes at most "
            f"{_MAX_PIXELS:,}",
        )


def _check_kind(key: str, image: ImageFile, content: bytes) -> None:
    """Reject intact images that TensorFlow cannot decode."""
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
    """Check the chunks up to the last one; as in TensorFlow, no checksums of optional ones."""
    place, kind = len(_PNG_MAGIC), b""
    while kind != b"IEND":
        if place + 12 > len(content):
            raise ValueError(_TRUNCATED)
        length, kind = struct.unpack_from(">I4s", content, place)
        end = place + 8 + length
        if end + 4 > len(content):
            raise ValueError(_TRUNCATED)
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
        raise ValueError(_TRUNCATED) from error
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

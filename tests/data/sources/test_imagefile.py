"""Images that are accepted are those that TensorFlow decodes."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from PIL import Image

from timonel.data.schema import ImageCheck
from timonel.data.sources import UnusableError
from timonel.data.sources.imagefile import ImageFacts, verify_image


def encoded(format_: str, mode: str = "RGB", *, frames: int = 1, **options: Any) -> bytes:
    first, *others = (Image.linear_gradient("L").resize((23, 17 + i)) for i in range(frames))
    first, *others = (
        image.quantize(5) if format_ == "GIF" else image.convert(mode) for image in (first, *others)
    )
    buffer = io.BytesIO()
    if others:
        options |= {"save_all": True, "append_images": [image.resize((23, 17)) for image in others]}
    first.save(buffer, format_, **options)
    return buffer.getvalue()


WHOLE = {
    "png": encoded("PNG"),
    "png with transparency": encoded("PNG", "RGBA"),
    "animated png": encoded("PNG", frames=3),
    "gif": encoded("GIF"),
    "animated gif": encoded("GIF", frames=3),
    "bmp": encoded("BMP"),
    "jpeg": encoded("JPEG"),
    "grey jpeg": encoded("JPEG", "L"),
    "progressive jpeg": encoded("JPEG", progressive=True),
    "cmyk jpeg": encoded("JPEG", "CMYK"),
    "webp": encoded("WEBP"),
}


def verify(content: bytes, check: ImageCheck = "decode") -> ImageFacts:
    return verify_image("key", content, check)


def damaged(content: bytes) -> Iterator[bytes]:
    """Yield versions of a file that are cut, extended, or have one bit or byte changed."""
    yield from (content[:-size] for size in range(1, 41))
    yield from (content + bytes(size) for size in (1, 2, 7))
    for place in range(8, len(content), max(1, len(content) // 100)):
        bit = bytes([content[place] ^ 1 << place % 8])
        yield content[:place] + bit + content[place + 1 :]
        yield content[:place] + b"Z" + content[place:]


@pytest.mark.parametrize("name", WHOLE)
def test_tensorflow_decodes_what_is_accepted(name: str) -> None:
    import tensorflow as tf

    accepted = 0
    for content in (WHOLE[name], *damaged(WHOLE[name])):
        try:
            facts = verify(content)
        except UnusableError:
            continue
        pixels = tf.io.decode_image(content, channels=3, expand_animations=False)
        assert pixels.shape == (facts.height, facts.width, 3)
        accepted += 1
    assert accepted


@pytest.mark.parametrize("name", ["jpeg", "grey jpeg", "progressive jpeg", "cmyk jpeg", "png"])
def test_both_checks_agree_on_whole_images_and_find_overwritten_ones(name: str) -> None:
    content = WHOLE[name]
    assert verify(content, "structure") == verify(content, "decode")
    middle = len(content) - 20
    for damage in (
        content[:middle],
        content[:-2],
        content[:middle] + bytes(len(content) - middle),
        content[:middle] + b"\xff\x5e" + content[middle:],
        content[:10],
    ):
        for check in get_args(ImageCheck):
            with pytest.raises(UnusableError, match="key: damaged"):
                verify(damage, check)


def test_bytes_after_the_end_of_a_jpeg_and_between_its_segments_are_forgiven() -> None:
    content = WHOLE["jpeg"]
    for check in get_args(ImageCheck):
        verify(content + bytes(7), check)
        second = content.index(b"\xff\xdb")
        verify(content[:second] + b"\0" + content[second:], check)
        verify(content[:-2] + b"\xff" + content[-2:], check)


def test_a_jpeg_with_a_frame_that_tensorflow_does_not_decode() -> None:
    content = bytearray(WHOLE["jpeg"])
    frame = content.index(b"\xff\xc0")
    for place, value in ((1, 0xC3), (4, 12), (9, 2)):  # lossless; 12 bits; two components
        other = bytearray(content)
        other[frame + place] = value
        with pytest.raises(UnusableError, match="damaged JPEG image"):
            verify(bytes(other), "structure")


@pytest.mark.parametrize("name", ["gif", "bmp", "webp"])
def test_formats_without_checksums_are_decoded_by_both_checks(name: str) -> None:
    def accepts(content: bytes, check: ImageCheck) -> bool:
        try:
            verify(content, check)
        except UnusableError:
            return False
        return True

    for content in damaged(WHOLE[name]):
        assert accepts(content, "structure") == accepts(content, "decode")


@pytest.mark.parametrize("size", [1, 4, 8, 12, 15])
@pytest.mark.parametrize("name", ["png", "animated png"])
def test_a_png_without_its_end(name: str, size: int) -> None:
    with pytest.raises(UnusableError, match="key: damaged PNG image: it is truncated"):
        verify(WHOLE[name][:-size])


def test_a_png_with_a_wrong_checksum() -> None:
    content = bytearray(WHOLE["png"])
    content[content.index(b"IEND") - 5] ^= 1
    with pytest.raises(UnusableError, match=": a wrong checksum of the chunk IDAT"):
        verify(bytes(content))


def test_a_wrong_checksum_of_an_optional_chunk_is_forgiven() -> None:
    end = WHOLE["png"].index(b"IEND") - 4
    chunk = b"tEXtA\0b"
    for checksum in zlib.crc32(chunk), 1:
        added = struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", checksum)
        verify(WHOLE["png"][:end] + added + WHOLE["png"][end:])
    with pytest.raises(UnusableError, match=": a chunk without a name"):
        verify(WHOLE["png"][:end] + added.replace(b"tEXt", b"tE\0t") + WHOLE["png"][end:])


def test_a_bmp_of_another_length() -> None:
    size = len(WHOLE["bmp"])
    with pytest.raises(UnusableError, match=f"BMP image: {size + 2:,} bytes instead of {size:,}"):
        verify(WHOLE["bmp"] + b"\0\0")


def test_a_gif_with_a_colour_that_its_map_lacks() -> None:
    content = bytearray(WHOLE["gif"])
    content[10] = content[10] & ~7 | 1  # a map of 4 colours instead of 8
    del content[13 + 12 : 13 + 24]
    with pytest.raises(UnusableError, match=": a colour outside of its map of 4"):
        verify(bytes(content))


def test_a_gif_with_a_damaged_later_frame() -> None:
    content = WHOLE["animated gif"]
    place = content.rindex(b"\x2c\0\0\0\0")
    no_height = content[: place + 7] + b"\0\0" + content[place + 9 :]
    with pytest.raises(UnusableError, match=": a frame without pixels"):
        verify(no_height)
    with pytest.raises(UnusableError, match="damaged GIF image: it is truncated"):
        verify(content[: place + 15])
    verify(content.removesuffix(b";"))  # decoders do not miss it


def test_a_webp_with_transparency() -> None:
    image = Image.new("RGBA", (7, 4), (1, 2, 3, 4))
    buffer = io.BytesIO()
    image.save(buffer, "WEBP")
    with pytest.raises(UnusableError, match=r"WebP image with transparency.*convert it to PNG"):
        verify(buffer.getvalue())


@pytest.mark.parametrize("format_", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("orientation", [1, 3, 6])
def test_the_exif_orientation(format_: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0110] = "Model"
    exif[0x0112] = orientation
    facts = verify(encoded(format_, exif=exif), "structure")
    assert (facts.height, facts.width, facts.orientation) == (17, 23, orientation)


def test_damaged_exif_data_has_no_orientation() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    content = encoded("JPEG", exif=exif)
    place = content.index(b"Exif\0\0")
    for changed in range(place, place + 26):
        for byte in (0, 0x80, 0xFF):
            broken = content[:changed] + bytes([byte]) + content[changed + 1 :]
            assert verify(broken, "structure").orientation in {1, 6}

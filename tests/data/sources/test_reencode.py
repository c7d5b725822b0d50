from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tests.data.conftest import MakeImages
from timonel.data.conversion import convert
from timonel.data.schema import ImageColumn, ImageSchema, TableSchema
from timonel.data.sources.base import Raw, SourceOptions
from timonel.data.sources.imagefile import verify_image
from timonel.data.sources.reencode import reencoded
from timonel.data.summary import summarise
from timonel.errors import SpecError
from timonel.storage import Workspace


def encoded(pixels: Any, form: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, form)
    return buffer.getvalue()


def changed(content: bytes, **options: Any) -> tuple[bytes, Any]:
    raw = Raw({"image": content}, verify_image("a", content))
    found = reencoded(raw, SourceOptions(**options))
    (result,) = found.features.values()
    assert isinstance(result, bytes)
    return result, found.image


def gradient(height: int, width: int) -> Any:
    rows, columns = np.mgrid[0:height, 0:width]
    channels = (rows * 255 // height, columns * 255 // width, rows * 0)
    return np.stack(channels, axis=-1).astype(np.uint8)


@given(
    st.tuples(st.integers(1, 60), st.integers(1, 60)),
    st.tuples(st.integers(1, 60), st.integers(1, 60)),
)
def test_a_scaled_image_covers_the_target_and_is_never_larger(
    size: tuple[int, int], target: tuple[int, int]
) -> None:
    content = encoded(np.zeros((*size, 3), np.uint8))
    result, facts = changed(content, image_size=target)
    with Image.open(io.BytesIO(result)) as image:
        assert (image.height, image.width) == (facts.height, facts.width)
    if size[0] <= target[0] or size[1] <= target[1]:
        assert result == content
    else:
        assert facts.height >= target[0]
        assert facts.width >= target[1]
        assert facts.height == target[0] or facts.width == target[1]
        assert facts.height <= size[0]
        assert facts.width <= size[1]


def test_images_are_unchanged_unless_they_need_to_be() -> None:
    content = encoded(gradient(40, 30), "JPEG")
    assert changed(content)[0] == content
    assert changed(content, image_size=(80, 80))[0] == content
    assert changed(content, image_format="jpeg")[0] == content
    smaller, facts = changed(content, quality=20)
    assert len(smaller) < len(content)
    assert facts.digest == verify_image("a", content).digest


@pytest.mark.parametrize("form", ["jpeg", "png", "webp"])
def test_another_format_has_nearly_the_same_pixels(form: str) -> None:
    pixels = gradient(40, 30)
    result, facts = changed(encoded(pixels, "BMP"), image_format=form)
    assert facts.format == form
    assert verify_image("a", result).format == form
    with Image.open(io.BytesIO(result)) as image:
        error = np.abs(np.asarray(image.convert("RGB")).astype(int) - pixels)
    assert error.mean() < 3


def test_sixteen_bits_become_eight_as_in_tensorflow() -> None:
    content = encoded(np.full((8, 8), 0x8040, np.uint16))
    result, _ = changed(content, image_size=(4, 4))
    with Image.open(io.BytesIO(result)) as image:
        assert image.getextrema() == (0x80, 0x80)


def test_transparency_is_kept_in_png_only() -> None:
    content = encoded(np.full((8, 8, 4), (10, 20, 30, 0), np.uint8))
    for options, mode in (({}, "RGBA"), ({"image_format": "jpeg"}, "RGB")):
        result, _ = changed(content, image_size=(4, 4), **options)
        with Image.open(io.BytesIO(result)) as image:
            assert image.mode == mode
            assert abs(image.getpixel((0, 0))[0] - 10) < 8  # type: ignore[index] # of a colour


def test_a_folder_of_images_is_scaled(
    make_images: MakeImages, tmp_path: Path, workspace: Workspace
) -> None:
    source = make_images(size=(40, 20))
    options: Any = {"image_size": (10, 10), "image_format": "jpeg", "workspace": workspace}
    dataset = convert(source, tmp_path / "set", **options)
    schema = dataset.manifest.record_schema
    assert isinstance(schema, ImageSchema)
    assert (schema.size, schema.formats) == ((20, 10), {"jpeg": 20})
    example = next(dataset.examples("train"))
    with Image.open(io.BytesIO(example["image"])) as image:
        assert (image.size, image.format) == ((10, 20), "JPEG")
    plain = convert(source, tmp_path / "plain", workspace=workspace)
    assert dataset.manifest.source.digest == plain.manifest.source.digest
    assert convert(source, tmp_path / "again", **options).digest == dataset.digest


def test_images_of_a_table_are_scaled_but_masks_are_not(
    tmp_path: Path, workspace: Workspace
) -> None:
    for i in range(20):
        Image.fromarray(gradient(40, 20) + i).save(tmp_path / f"{i}.png")
    Image.fromarray(np.eye(40, 20, dtype=np.uint8)).save(tmp_path / "m.png")
    rows = [
        {"photo": [f"{i}.png"] * 2, "mask": "m.png", "n": i, "y": "ab"[i % 2]} for i in range(20)
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    dataset = convert(
        tmp_path / "rows.jsonl",
        tmp_path / "set",
        label="y",
        columns={"photo": "image", "mask": "mask"},
        image_size=(10, 10),
        workspace=workspace,
    )
    assert isinstance(dataset.manifest.record_schema, TableSchema)
    photo, mask = dataset.manifest.record_schema.columns  # n is a row id
    assert isinstance(photo, ImageColumn)
    assert photo.size == (20, 10)
    example = next(dataset.examples("train"))
    assert example["column/mask"] == (tmp_path / "m.png").read_bytes()
    with Image.open(io.BytesIO(example["column/photo"][1])) as image:
        assert image.size == (10, 20)
    assert mask.type == "mask"


@pytest.mark.parametrize(
    "options", [{"image_size": (0, 5)}, {"quality": 0}, {"image_format": "tiff"}]
)
def test_wrong_options_are_one_line(
    options: dict[str, Any], make_images: MakeImages, tmp_path: Path, workspace: Workspace
) -> None:
    with pytest.raises(SpecError, match="expected"):
        convert(make_images(), tmp_path / "set", workspace=workspace, **options)


@pytest.mark.parametrize(
    "options", [{"image_size": (20, 15)}, {"quality": 95}, {"image_size": (90, 90)}]
)
@pytest.mark.parametrize("orientation", [1, 3, 6])
def test_reencoded_images_are_upright(orientation: int, options: dict[str, Any]) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    turns = {1: 0, 3: 2, 6: 1}[orientation]
    buffer = io.BytesIO()
    stored = np.rot90(gradient(40, 30), turns)
    Image.fromarray(stored).save(buffer, "JPEG", exif=exif, quality=95)
    result, facts = changed(buffer.getvalue(), **options)
    size = (20, 15) if options.get("image_size") == (20, 15) else (40, 30)
    assert (facts.height, facts.width, facts.orientation) == (*size, 1)
    with Image.open(io.BytesIO(result)) as image:
        assert image.getexif().get(0x0112, 1) == 1 or result == buffer.getvalue()
        assert np.abs(np.asarray(image).astype(int) - gradient(*size)).mean() < 6


def test_images_that_are_stored_sideways_are_counted(
    make_images: MakeImages, tmp_path: Path, workspace: Workspace
) -> None:
    source = make_images()
    exif = Image.Exif()
    exif[0x0112] = 6
    for label, width in (("cat", 30), ("dog", 33)):
        Image.fromarray(gradient(40, width)).save(source / label / "turned.jpg", exif=exif)
    dataset = convert(source, tmp_path / "set", workspace=workspace)
    warning = summarise(dataset).warnings[-1]
    assert warning.startswith("2 images stored sideways or mirrored, because TensorFlow ignores")
    assert "turned.jpg: rotate the files, for example with 'exiftran -ai', or re-encode" in warning
    upright = convert(source, tmp_path / "upright", quality=90, workspace=workspace)
    assert not any("sideways" in line for line in summarise(upright).warnings)

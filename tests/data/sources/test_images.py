from __future__ import annotations

import io
import json
import os
import re
import shutil
import struct
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from tests.contracts.sources import SourceContract
from tests.data.conftest import MakeImages
from tests.data.sources.summaries import statistics_of
from timonel.data.schema import IMAGE_FEATURE, ImageSchema
from timonel.data.sources import Entry, RawFiles, Scan, Source, SourceOptions, UnusableError
from timonel.data.sources.images import ImageFolderSource
from timonel.errors import DataError
from timonel.storage import digest_file
from timonel.storage.location import Location

FILES = RawFiles("sha256:files", 20, 1000)


class TestContract(SourceContract):
    @pytest.fixture
    def source(self, make_images: MakeImages) -> Source:
        return ImageFolderSource(Location(make_images()))


def encoded(format_: str, mode: str = "RGB", size: tuple[int, int] = (7, 4)) -> bytes:
    buffer = io.BytesIO()
    Image.effect_noise(size, 50).convert(mode).save(buffer, format_)
    return buffer.getvalue()


def found(root: Path, options: SourceOptions | None = None) -> tuple[list[Entry], Scan]:
    """Return the entries of a scan, and the scan after they were consumed."""
    scan = ImageFolderSource(Location(root), options or SourceOptions()).scan()
    return list(scan.entries), scan


def entry_of(root: Path, key: str) -> Entry:
    return next(entry for entry in found(root)[0] if entry.key == key)


def schema_of(source: ImageFolderSource) -> ImageSchema:
    statistics = statistics_of(source, source.scan().entries)
    schema = source.describe({"train": statistics}, FILES).schema
    assert isinstance(schema, ImageSchema)
    return schema


def test_images_are_found_by_their_first_bytes_in_folders_of_any_depth(
    make_images: MakeImages,
) -> None:
    root = make_images(count=1)
    (root / "cat" / "deep" / "er").mkdir(parents=True)
    (root / "cat" / "deep" / "er" / "no ending").write_bytes(encoded("JPEG"))
    (root / "dog" / "wrong.png").write_bytes(encoded("GIF"))
    assert [(entry.key, entry.label) for entry in found(root)[0]] == [
        ("cat/000.png", "cat"),
        ("cat/deep/er/no ending", "cat"),
        ("dog/000.png", "dog"),
        ("dog/wrong.png", "dog"),
    ]


def test_what_is_no_image_is_reported_and_hidden_files_are_not(make_images: MakeImages) -> None:
    root = make_images(count=1)
    for name in ("cat/notes.txt", "README", "cat/Thumbs.db", "dog/.DS_Store"):
        (root / name).write_text("text")
    (root / ".cache").mkdir()
    (root / "bird").mkdir()
    _, scan = found(root)
    assert scan.ignored == ["README", "bird/ (no images)", "cat/notes.txt"]


def test_formats_sizes_and_colours_are_described(make_images: MakeImages) -> None:
    root = make_images(count=1, mode="L")
    (root / "cat" / "a.jpg").write_bytes(encoded("JPEG", "L", (20, 10)))
    (root / "dog" / "b.bmp").write_bytes(encoded("BMP", "RGB", (30, 12)))
    schema = schema_of(ImageFolderSource(Location(root)))
    assert schema.formats == {"bmp": 1, "jpeg": 1, "png": 2}
    assert (schema.height.minimum, schema.height.median, schema.height.maximum) == (6, 6, 12)
    assert (schema.width.minimum, schema.width.maximum) == (5, 30)
    assert schema.size is None
    assert schema.channels == 3


def test_grey_images_of_one_size(make_images: MakeImages) -> None:
    schema = schema_of(ImageFolderSource(Location(make_images(mode="L"))))
    assert schema.size == (6, 5)
    assert schema.channels == 1


def test_the_digest_is_that_of_the_files(make_images: MakeImages) -> None:
    source = ImageFolderSource(Location(make_images()))
    statistics = statistics_of(source, source.scan().entries)
    description = source.describe({"train": statistics}, FILES)
    assert (description.digest, description.files, description.bytes) == (
        "sha256:files",
        20,
        1000,
    )


def test_the_bytes_are_kept_as_they_are(make_images: MakeImages) -> None:
    source = ImageFolderSource(Location(make_images()))
    entry = entry_of(source.location.path, "cat/000.png")
    assert source.read(entry).features == {IMAGE_FEATURE: Path(entry.ref).read_bytes()}


@pytest.mark.parametrize("format_", ["PNG", "JPEG", "GIF", "BMP", "WEBP"])
def test_an_image_that_is_cut_off(make_images: MakeImages, format_: str) -> None:
    root = make_images()
    (root / "cat" / "cut").write_bytes(encoded(format_, size=(90, 90))[:-400])
    source = ImageFolderSource(Location(root))
    entry = entry_of(root, "cat/cut")
    with pytest.raises(UnusableError, match=f"cat/cut: damaged {format_} image: "):
        source.read(entry)


@pytest.mark.parametrize("content", [b"", b"II*\0tiff", b"text"])
def test_a_file_named_like_an_image_that_is_none(make_images: MakeImages, content: bytes) -> None:
    root = make_images()
    (root / "cat" / "photo.JPG").write_bytes(content)
    reason = "not a JPEG, .* image" if content else "an empty file"
    entries, scan = found(root)
    (rejected,) = scan.rejected
    key, message = rejected.key, rejected.reason
    assert key == "cat/photo.JPG"
    assert re.match(reason, message)
    assert len(entries) == 20


def test_a_bmp_that_tensorflow_cannot_decode(make_images: MakeImages) -> None:
    root = make_images()
    (root / "cat" / "grey.bmp").write_bytes(encoded("BMP", "L"))
    source = ImageFolderSource(Location(root))
    entry = entry_of(root, "cat/grey.bmp")
    with pytest.raises(UnusableError, match="BMP images of 24 bits per pixel only, not 8"):
        source.read(entry)


def test_a_decoder_that_stumbles_is_the_files_fault(make_images: MakeImages) -> None:
    root = make_images()
    content = bytearray(encoded("PNG"))
    content[16:24] = struct.pack(">II", 0x7FFFFFFF, 0x7FFFFFFF)
    (root / "cat" / "huge.png").write_bytes(content)
    source = ImageFolderSource(Location(root))
    entry = entry_of(root, "cat/huge.png")
    with pytest.raises(UnusableError, match=r"cat/huge\.png"):
        source.read(entry)


def test_a_file_that_vanishes(make_images: MakeImages) -> None:
    source = ImageFolderSource(Location(make_images()))
    entry = entry_of(source.location.path, "cat/000.png")
    Path(entry.ref).unlink()
    with pytest.raises(UnusableError, match=r"cat/000\.png: cannot read it: No such file"):
        source.read(entry)


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has no folders of images: found nothing"):
        found(tmp_path)


def test_images_without_label_folders(make_images: MakeImages) -> None:
    root = make_images()
    with pytest.raises(DataError, match="found 10 other files or folders: put the images into"):
        found(root / "cat")


def test_one_label_only(make_images: MakeImages) -> None:
    with pytest.raises(DataError, match=r"needs at least two labels, found only 'cat'"):
        found(make_images(["cat"]))


def test_a_label_folder_may_be_a_link(make_images: MakeImages, tmp_path: Path) -> None:
    root = make_images(count=2)
    (root / "dog").rename(tmp_path / "elsewhere")
    (root / "dog").symlink_to(tmp_path / "elsewhere")
    assert len(found(root)[0]) == 4


def test_only_folders_are_recognised(make_images: MakeImages) -> None:
    root = make_images()
    assert ImageFolderSource.recognises(Location(root), SourceOptions())
    assert not ImageFolderSource.recognises(Location(root / "cat" / "000.png"), SourceOptions())


def split_folders(make_images: MakeImages, *splits: str) -> Path:
    root = make_images(count=4, name=splits[0])
    home = root.parent / "set"
    home.mkdir()
    for split in splits:
        shutil.copytree(root, home / split)
        for index, path in enumerate(sorted((home / split).rglob("*.png"))):
            Image.effect_noise((5, index + 9), 50 + len(split)).save(path)
    return home


def test_folders_named_after_splits_are_no_labels(make_images: MakeImages) -> None:
    home = split_folders(make_images, "train", "Val", "test")
    entries, _ = found(home)
    assert {entry.label for entry in entries} == {"cat", "dog"}
    assert {(entry.key.split("/")[0], entry.split) for entry in entries} == {
        ("train", "train"),
        ("Val", "validation"),
        ("test", "test"),
    }
    labels, _ = found(home, SourceOptions(folders="labels"))
    assert {entry.label for entry in labels} == {"train", "Val", "test"}


def test_split_folders_with_something_else_beside_or_inside(make_images: MakeImages) -> None:
    home = split_folders(make_images, "train", "test")
    shutil.copy(home / "train" / "cat" / "000.png", home / "test" / "loose.png")
    with pytest.raises(DataError, match=r"test/loose.png is in no label folder of the test split"):
        found(home)
    (home / "test" / "loose.png").unlink()
    shutil.copytree(home / "test" / "cat", home / "unlabelled")
    with pytest.raises(
        DataError, match=r"'unlabelled' beside the split folders .*--folders labels"
    ):
        found(home)
    shutil.rmtree(home / "unlabelled")
    shutil.rmtree(home / "test")
    with pytest.raises(DataError, match=r"found only 'train': convert .*/train if its folders"):
        found(home)


def test_files_that_agree_in_size_and_at_both_ends_share_a_group(make_images: MakeImages) -> None:
    root = make_images(count=1)
    start, end = b"BM" + bytes(6000), bytes(6000)
    contents = {
        "a": start + b"1" + end,
        "b": b"BM" + b"1" * 5999 + b"11" + end,
        "c": start + b"2" + end,
    }
    contents["d"] = start + b"1" + end[:-1] + b"!"
    for name, content in contents.items():
        (root / "cat" / f"{name}.bmp").write_bytes(content)
    (root / "dog" / "e.bmp").write_bytes(contents["a"])
    groups = {entry.key: entry.group for entry in found(root)[0]}
    assert groups["cat/a.bmp"] == groups["cat/c.bmp"] == groups["dog/e.bmp"]
    assert len(set(groups.values())) == len(groups) - 2
    source = ImageFolderSource(Location(root))
    digests = {entry.key: source.digest(entry) for entry in found(root)[0]}
    assert digests["cat/a.bmp"] == digests["dog/e.bmp"] == digest_file(root / "cat" / "a.bmp")
    assert digests["cat/c.bmp"] != digests["cat/a.bmp"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_ignored(make_images: MakeImages) -> None:
    root = make_images(count=1)
    os.mkfifo(root / "cat" / "pipe.png")
    assert found(root)[1].ignored == ["cat/pipe.png"]


def test_names_that_are_not_utf8(make_images: MakeImages) -> None:
    root = make_images(count=1)
    try:
        shutil.copy(root / "cat" / "000.png", os.fsencode(root / "cat") + b"/ni\xf1a.png")
    except OSError:
        pytest.skip("the file system takes UTF-8 only")
    source = ImageFolderSource(Location(root))
    entry = entry_of(root, "cat/ni\\xf1a.png")
    assert source.read(replace(entry, ref=json.loads(json.dumps(entry.ref)))).image
    json.dumps([entry.key for entry in found(root)[0]]).encode()
    (root / "cat").rename(os.fsdecode(os.fsencode(root) + b"/c\xe1t"))
    with pytest.raises(DataError, match=r"label folder 'c\\\\xe1t' is not UTF-8"):
        found(root)


def test_large_photographs_are_taken_without_a_warning(make_images: MakeImages) -> None:
    # Warnings are errors here. Pillow warns from 89 million pixels on.
    root = make_images(count=1)
    Image.new("1", (10_000, 9_000)).save(root / "cat" / "large.png")
    Image.new("1", (20_000, 9_000)).save(root / "cat" / "larger.png")
    source = ImageFolderSource(Location(root))
    entries = {entry.key: entry for entry in found(root)[0]}
    image = source.read(entries["cat/large.png"]).image
    assert image is not None
    assert image.width == 10_000
    with pytest.raises(UnusableError, match=r"20,000 x 9,000 pixels, .* at most 178,956,970"):
        source.read(entries["cat/larger.png"])


def test_an_animated_webp(make_images: MakeImages) -> None:
    root = make_images(count=1)
    frames = [Image.effect_noise((7, 5), sigma) for sigma in (50, 90)]
    frames[0].save(root / "cat" / "film.webp", save_all=True, append_images=frames[1:])
    source = ImageFolderSource(Location(root))
    entry = entry_of(root, "cat/film.webp")
    with pytest.raises(UnusableError, match="animated WebP"):
        source.read(entry)

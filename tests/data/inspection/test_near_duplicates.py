"""Near-duplicates: found whatever their number, and no others."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image, ImageEnhance

from timonel.data.inspection.near_duplicates import MAX_DISTANCE, find_copies, signature_of


def photograph(seed: int, size: tuple[int, int] = (160, 120)) -> Image.Image:
    """Return smooth random colours, which have structure at all scales as photographs do."""
    random = np.random.default_rng(seed)
    total = np.zeros((*size[::-1], 3))
    for cells in (3, 6, 12, 24):
        part = Image.fromarray(random.integers(0, 256, (cells, cells, 3), np.uint8), "RGB")
        total += np.asarray(part.resize(size, Image.Resampling.BICUBIC), float) / cells
    total -= total.min()
    return Image.fromarray((255 * total / total.max()).astype(np.uint8), "RGB")


def encoded(image: Image.Image, format_: str = "JPEG", quality: int = 90) -> bytes:
    file = io.BytesIO()
    image.save(file, format_, quality=quality)
    return file.getvalue()


CHANGES = {
    "saved again": lambda image: encoded(image, quality=30),
    "as PNG": lambda image: encoded(image, "PNG"),
    "half the size": lambda image: encoded(image.resize((80, 60))),
    "squashed": lambda image: encoded(image.resize((100, 100))),
    "brighter": lambda image: encoded(ImageEnhance.Brightness(image).enhance(1.2)),
    "grey": lambda image: encoded(image.convert("L")),
    "cropped by 1 %": lambda image: encoded(image.crop((1, 1, 159, 119))),
}


def copies(contents: list[bytes], splits: list[int], labels: list[int] | None = None):
    signatures = [signature for signature in map(signature_of, contents) if signature is not None]
    assert len(signatures) == len(contents)
    return find_copies(
        np.frombuffer(b"".join(signature[0] for signature in signatures), np.uint8).reshape(-1, 32),
        np.frombuffer(b"".join(signature[1] for signature in signatures), np.int8).reshape(-1, 64),
        np.array(splits, np.int8),
        np.array(labels or [0] * len(splits), np.int64),
    )


@pytest.mark.parametrize("change", CHANGES)
def test_changed_copies_are_found_and_others_are_not(change: str) -> None:
    images = [photograph(seed) for seed in range(40)]
    train = [encoded(image) for image in images]
    test = [CHANGES[change](image) for image in images[:20]]
    test += [encoded(photograph(seed)) for seed in range(100, 120)]
    found = copies(train + test, [0] * 40 + [2] * 40)
    assert {(copy, original) for copy, original, _ in found} == {(40 + n, n) for n in range(20)}
    distances = [distance for *_, distance in found]
    assert distances == sorted(distances)
    assert distances[-1] <= MAX_DISTANCE


def test_copies_in_one_split_count_only_with_other_labels() -> None:
    content = encoded(photograph(0))
    again = encoded(photograph(0), quality=40)
    assert copies([content, again], [0, 0]) == []
    assert [pair[:2] for pair in copies([content, again], [0, 0], [0, 1])] == [(1, 0)]
    assert [pair[:2] for pair in copies([content, again], [1, 0])] == [(0, 1)]


def test_flat_images_are_not_alike() -> None:
    flat = [encoded(Image.new("RGB", (30, 30), (level, level, level))) for level in (0, 90, 255)]
    assert copies(flat, [0, 1, 2]) == []


def test_many_copies_of_one_image_do_not_hide_each_other() -> None:
    random = np.random.default_rng(0)
    crowd = [encoded(photograph(0), quality=int(q)) for q in random.integers(40, 95, 120)]
    found = copies(crowd, [0] * 60 + [2] * 60)
    assert {copy for copy, *_ in found} == set(range(60, 120))


def test_the_search_finds_what_comparing_all_pairs_finds() -> None:
    random = np.random.default_rng(0)
    hashes = random.integers(0, 256, (3000, 32), np.uint8)
    flips = random.integers(0, MAX_DISTANCE, 1000)
    for number, count in enumerate(flips):
        bits = np.unpackbits(hashes[number])
        bits[random.choice(256, count, replace=False)] ^= 1
        hashes[2000 + number] = np.packbits(bits)
    thumbnails = np.full((3000, 64), 32, np.int8)
    splits = np.array([0] * 2000 + [1] * 1000, np.int8)
    found = find_copies(hashes, thumbnails, splits, np.zeros(3000, np.int64))
    assert len(found) >= 990
    assert all(copy - 2000 == original for copy, original, _ in found)
    assert [distance for *_, distance in found] == sorted(flips[copy - 2000] for copy, *_ in found)


def test_other_content_has_no_signature() -> None:
    assert signature_of(b"text") is None
    assert signature_of(encoded(photograph(0))[:500]) is None
    assert (
        find_copies(
            np.empty((0, 32), np.uint8),
            np.empty((0, 64), np.int8),
            np.empty(0, np.int8),
            np.empty(0, np.int64),
        )
        == []
    )


def test_images_of_few_pixels_are_not_compared() -> None:
    assert signature_of(encoded(photograph(0).resize((16, 16)))) is not None
    assert signature_of(encoded(photograph(0).resize((15, 16)))) is None

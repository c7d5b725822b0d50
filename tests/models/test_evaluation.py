"""Counts, scores and the picture."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from timonel.models.evaluation import (
    accuracy,
    confusion_matrix,
    write_confusion_png,
)

CONFUSION = ((8, 2, 0), (1, 9, 0), (0, 0, 0))
LABELS = ["cat", "dog", "emu"]


def test_counts_go_by_true_and_predicted_class() -> None:
    assert confusion_matrix([(0, 1), (0, 1), (1, 0), (1, 1)], 2) == ((0, 2), (1, 1))


def test_accuracy_is_the_share_of_right_answers() -> None:
    assert accuracy(CONFUSION) == 17 / 20
    assert accuracy(((0,),)) is None


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=60))
def test_counts_and_shares_fit_together(pairs: list[tuple[int, int]]) -> None:
    confusion = confusion_matrix(pairs, 5)
    assert sum(map(sum, confusion)) == len(pairs)
    if pairs:
        right = sum(true == predicted for true, predicted in pairs)
        assert accuracy(confusion) == right / len(pairs)


@pytest.mark.slow
@pytest.mark.parametrize("classes", [2, 10, 40, 200])
def test_the_picture_is_a_png_without_leftovers(tmp_path: Path, classes: int) -> None:
    labels = [f"a label with a long name {number}" for number in range(classes)]
    pairs = [(number, (number * 7) % classes) for number in range(classes)]
    path = tmp_path / "confusion.png"
    write_confusion_png(path, confusion_matrix(pairs, classes), labels, title="pets")
    with Image.open(path) as image:
        image.verify()
        assert image.format == "PNG"
        assert 600 < image.width < 2600
    assert list(tmp_path.iterdir()) == [path]


def test_the_picture_of_no_examples(tmp_path: Path) -> None:
    write_confusion_png(tmp_path / "none.png", ((0, 0), (0, 0)), ["a", "b"])
    assert (tmp_path / "none.png").stat().st_size > 1000

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timonel.data.schema import labels_of
from timonel.data.sources.labels import multiple_labels
from timonel.errors import DataError


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="|")), unique=True))
def test_several_labels_survive_their_text(labels: list[str]) -> None:
    known = sorted({label.strip() for label in labels} - {""})
    assert labels_of(multiple_labels(labels)) == known
    assert multiple_labels(" | ".join(known)) in {multiple_labels(known), ""}


def test_a_label_with_a_bar_in_a_list_is_an_error() -> None:
    with pytest.raises(DataError, match="contains a bar"):
        multiple_labels(["a|b"])


@pytest.mark.parametrize("value", [[0, 0, 1], [1.0, 0.0, 0.0], [False, True, False], "0|1|0"])
def test_one_hot_vectors_are_no_labels(value: object) -> None:
    with pytest.raises(DataError, match="labels are one-hot vectors"):
        multiple_labels(value)
    assert multiple_labels([0, 1]) == "0|1"
    assert multiple_labels([2.0, 0.5, True, None]) == "0.5|2|true"
    assert multiple_labels(["a", "a"]) == "a"

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timonel.data.schema import labels_of
from timonel.data.sources.labels import multiple_labels
from timonel.errors import DataError


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="|"))))
def test_several_labels_survive_their_text(labels: list[str]) -> None:
    known = sorted({label.strip() for label in labels} - {""})
    assert labels_of(multiple_labels(labels)) == known
    assert multiple_labels(" | ".join(known)) in {multiple_labels(known), ""}


def test_a_label_with_a_bar_in_a_list_is_an_error() -> None:
    with pytest.raises(DataError, match="contains a bar"):
        multiple_labels(["a|b"])

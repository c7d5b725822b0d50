from __future__ import annotations

import pytest
import yaml  # type: ignore[import-untyped] # no stubs

from timonel.storage.yaml_text import PlainLoader, TextLoader, yaml_problem


@pytest.mark.parametrize("loader", [PlainLoader, TextLoader])
def test_a_repeated_key_is_an_error_with_its_place(loader: type) -> None:
    with pytest.raises(yaml.YAMLError) as caught:
        yaml.load("a: 1\nb: {c: 1, c: 2}", Loader=loader)
    assert yaml_problem(caught.value) == " (line 2, column 11): the key 'c' is repeated"
    many = yaml.load("- {a: 1}\n- {a: 2}", Loader=loader)
    assert [list(each) for each in many] == [["a"], ["a"]]


def test_merged_keys_may_be_overridden() -> None:
    text = "a: &a {x: 1, y: 2}\nb: &b {<<: *a, x: 3}\nc: {<<: *b, <<: *a, x: 4}"
    assert yaml.load(text, Loader=PlainLoader)["c"] == {"x": 4, "y": 2}

from __future__ import annotations

import pytest

from timonel.errors import SpecError
from timonel.serving.settings.runtime import RuntimeSettings, by_model


def test_values_for_all_and_for_one():
    assert by_model([], "it") == {}
    assert by_model(["A", "digits=B", "C", "digits=D"], "it") == {
        "*": ("A", "C"),
        "digits": ("B", "D"),
    }


@pytest.mark.parametrize("text", ["", "=A", "digits="])
def test_something_is_missing(text):
    with pytest.raises(SpecError, match="expected an operation, or MODEL=an operation, got "):
        by_model([text], "an operation")


def test_a_model_has_what_all_have_and_its_own():
    settings = RuntimeSettings(allow_ops={"*": ("A",), "digits": ("B",)})
    assert settings.of("digits").allow_ops == {"*": ("A", "B")}
    assert settings.of("others").allow_ops == {"*": ("A",)}


def test_models_are_loaded_safely_unless_a_server_says_otherwise():
    assert RuntimeSettings().safe_loading

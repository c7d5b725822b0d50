"""What predictions, confusion matrices and checks look like."""

from __future__ import annotations

from tests.cli.test_render import plain
from timonel.cli.render.predictions import prediction_json, predictions_page
from timonel.serving import Prediction

SEVEN = Prediction(
    source="digits/7/0009.png", model="digits", version=2, label="7", scores={"7": 0.9, "1": 0.1}
)
NUMBER = Prediction(source="row 1", model="prices", version=1, value=152.1337)
TENSOR = Prediction(source="input", model="t", version=1, outputs={"y": [1, 2]})


def test_a_single_prediction_has_bars_for_its_scores() -> None:
    lines = plain(predictions_page([SEVEN], top=5))
    assert lines[0] == "digits/7/0009.png  7  digits/2"
    assert lines[1].split() == ["7", "█" * 22 + "░" * 2, "90.0%"]
    assert len(lines) == 3
    assert len(plain(predictions_page([SEVEN], top=1))) == 2


def test_integers_have_all_their_digits() -> None:
    large = Prediction(source="row 1", model="ids", version=1, value=2**53 + 1)
    assert plain(predictions_page([large], top=5))[0].split()[2] == "9007199254740993"


def test_several_predictions_are_a_line_each() -> None:
    lines = plain(predictions_page([SEVEN, NUMBER], top=5))
    assert lines[0] == "digits/7/0009.png  7  █████████░  90.0%"
    assert lines[1].split() == ["row", "1", "152.1"]
    assert plain(predictions_page([], top=5)) == []


def test_a_model_of_tensors_shows_its_outputs() -> None:
    assert "y [1, 2]" in plain(predictions_page([TENSOR], top=5))[0]


def test_json() -> None:
    assert set(prediction_json(SEVEN)) == {
        "input", "model", "version", "label", "scores", "value", "outputs",
    }  # fmt: skip
    assert prediction_json(SEVEN)["outputs"] == {}
    assert prediction_json(TENSOR)["outputs"] == {"y": [1, 2]}

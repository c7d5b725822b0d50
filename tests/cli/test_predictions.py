"""What predictions, confusion matrices and checks look like."""

from __future__ import annotations

from tests.cli.test_render import plain
from timonel.cli.render.predictions import prediction_json, predictions_page
from timonel.cli.render.tables import confusion_table
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


def test_a_confusion_matrix_shows_right_and_wrong() -> None:
    lines = plain(confusion_table([[5, 0], [1, 4]], ["cat", "dog"]))
    assert lines[0].split() == ["true", "\\", "said", "cat", "dog"]
    assert lines[1].split() == ["cat", "5", "·"]
    assert lines[2].split() == ["dog", "1", "4"]


def test_of_many_labels_the_most_confused_are_shown() -> None:
    size = 30
    matrix = [[9 if row == column else 0 for column in range(size)] for row in range(size)]
    matrix[3][28] = 2
    lines = plain(confusion_table(matrix, [f"l{i}" for i in range(size)]), width=200)
    assert len(lines) == 21
    assert any(line.startswith("l28") for line in lines)

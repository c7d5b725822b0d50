"""Render predictions: labels with bars, numbers, and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.text import Text

from timonel.cli.render.tables import bar
from timonel.styles import number
from timonel.units import counted

if TYPE_CHECKING:
    from timonel.batch import BatchPrediction
    from timonel.serving import Prediction

_BAR_WIDTH = 24


def predictions_page(predictions: Sequence[Prediction], *, top: int) -> RenderableType:
    """Render predictions: a single one in full, several as one line each."""
    if len(predictions) == 1:
        return _one(predictions[0], top)
    width = max((len(each.source) for each in predictions), default=0)
    return Group(*[_line(each, min(width, 48)) for each in predictions])


def prediction_json(prediction: Prediction) -> dict[str, Any]:
    """Return a prediction as JSON."""
    fields = dict(vars(prediction))
    return {"input": fields.pop("source"), **fields}


def batch_page(done: BatchPrediction) -> RenderableType:
    """Render the result of a batch prediction."""
    lines = [
        Text.assemble(
            (f"{done.out}", "bold"),
            f"  {counted(done.rows, 'prediction')} of {done.model}/{done.version}",
        )
    ]
    if done.errors is not None:
        failed = counted(done.failed, "row")
        lines.append(Text(f"{failed} without a prediction: see {done.errors}", "yellow"))
    if done.ignored:
        ignored = counted(done.ignored, "file")
        lines.append(Text(f"{ignored} of other types ignored", "dim"))
    return Group(*lines)


def _one(prediction: Prediction, top: int) -> RenderableType:
    head = Text.assemble(
        (prediction.source, "dim"),
        "  ",
        (answer(prediction), "bold green"),
        (f"  {prediction.model}/{prediction.version}", "dim"),
    )
    scores = list(prediction.scores.items())[:top]
    width = max((len(label) for label, _ in scores), default=0)
    lines = [
        Text.assemble(
            f"  {label:<{width}}  ",
            (bar(score, _BAR_WIDTH), "green" if label == prediction.label else "dim"),
            f"  {score:6.1%}",
        )
        for label, score in scores
    ]
    return Group(head, *lines)


def _line(prediction: Prediction, width: int) -> Text:
    name = (
        prediction.source
        if len(prediction.source) <= width
        else f"…{prediction.source[1 - width :]}"
    )
    text = Text.assemble((f"{name:<{width}}  ", "dim"), (answer(prediction), "bold green"))
    best = next(iter(prediction.scores.values()), None)
    return text if best is None else text.append(f"  {bar(best, 10)}  {best:.1%}")


def answer(prediction: Prediction) -> str:
    """Return the prediction in brief: label, value, or raw outputs."""
    if prediction.label is not None:
        return prediction.label
    if (value := prediction.value) is not None:
        return str(value) if isinstance(value, int) else number(value)
    return ", ".join(f"{name} {value}" for name, value in prediction.outputs.items())

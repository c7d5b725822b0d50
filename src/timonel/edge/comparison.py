"""Compare the predictions of a converted model with the original's. Without TensorFlow."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from timonel.edge.report import ConversionComparison, WorstExample
from timonel.errors import ModelError

if TYPE_CHECKING:
    from timonel.edge.samples import Example, Samples

Run = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""Computes outputs by name for inputs by name, with a batch of 1."""

Outputs = npt.NDArray[np.float64]
"""Outputs of a model [examples, numbers], flattened in the order of their names."""

_WORST = 20


def compare(
    before: Outputs, after: Outputs, samples: Samples, labels: Sequence[str] | None
) -> tuple[ConversionComparison, list[WorstExample]]:
    """Compare the outputs of two models for held-out examples.

    Args:
        before: The original's outputs, from `outputs_of`.
        labels: Labels by index of score; None if the outputs are no scores.

    Returns:
        The comparison, and the examples that differ most.
    """
    if before.shape != after.shape:
        raise ModelError(
            f"the converted model returns {after.shape[1]} numbers, the original {before.shape[1]}",
            hint="give the model's outputs fixed sizes",
        )
    _check_finite(before, samples.held_out, "original")
    _check_finite(after, samples.held_out, "converted model")
    differences = np.abs(before - after)
    truth = np.array([np.nan if e.label is None else e.label for e in samples.held_out])
    facts: dict[str, Any] = {}
    if labels:
        facts["agreement"] = float(np.mean(before.argmax(1) == after.argmax(1)))
        if not np.isnan(truth).any():
            facts["accuracy"] = accuracy(after, samples.held_out)
            facts["original_accuracy"] = accuracy(before, samples.held_out)
    elif before.shape[1] == 1 and not np.isnan(truth).any():
        facts["error"] = float(np.sqrt(np.mean((after[:, 0] - truth) ** 2)))
        facts["original_error"] = float(np.sqrt(np.mean((before[:, 0] - truth) ** 2)))
    comparison = ConversionComparison(
        examples=len(before),
        source=samples.source,
        largest_output=float(np.abs(before).max()),
        max_difference=float(differences.max()),
        mean_difference=float(differences.mean()),
        **facts,
    )
    order = np.argsort(-differences.max(1), kind="stable")[:_WORST]
    worst = [
        _worst(samples.held_out[index], before[index], after[index], labels) for index in order
    ]
    return comparison, worst


def outputs_of(model: Run, examples: Sequence[Example]) -> Outputs:
    """Return all outputs of a model for each example."""
    try:
        rows = [_flat(model(each.inputs)) for each in examples]
    except RuntimeError as error:
        raise ModelError(f"the converted model fails on an example: {error}") from error
    if len({len(row) for row in rows}) > 1:
        raise ModelError(
            "the size of an output depends on the input, so outputs cannot be compared",
            hint="pad it to a fixed size in the model",
        )
    return np.array(rows)


def accuracy(outputs: Outputs, examples: Sequence[Example]) -> float:
    """Return the share of examples whose largest score is that of their label."""
    return float(np.mean(outputs.argmax(1) == [example.label for example in examples]))


def _check_finite(outputs: Outputs, examples: Sequence[Example], model: str) -> None:
    bad = np.flatnonzero(~np.isfinite(outputs).all(1))
    if bad.size:
        raise ModelError(
            f"the {model}'s output for example {examples[bad[0]].key} is not a finite number",
            hint="give other examples with --samples FILE.npz"
            if model == "original"
            else "use another --quantize",
        )


def _worst(example: Example, before: Any, after: Any, labels: Sequence[str] | None) -> WorstExample:
    label = None
    if example.label is not None:
        known = labels and 0 <= int(example.label) < len(labels)
        label = labels[int(example.label)] if labels and known else f"{example.label:g}"
    return WorstExample(
        key=example.key,
        difference=float(np.abs(before - after).max()),
        original=tuple(map(float, before)),
        converted=tuple(map(float, after)),
        label=label,
        image_png=_png(next(iter(example.inputs.values()))),
    )


def _png(pixels: Any) -> str | None:
    """Return an image as base64 PNG; None if the input is no image."""
    if pixels.ndim != 4 or pixels.shape[-1] not in {1, 3, 4} or pixels.dtype != np.float32:
        return None
    from PIL import Image  # noqa: PLC0415 - takes 50 ms

    values = np.clip(pixels[0], 0, 255).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(values[..., 0] if values.shape[-1] == 1 else values).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def _flat(outputs: Mapping[str, Any]) -> Any:
    return np.concatenate(
        [np.asarray(outputs[name], np.float64).ravel() for name in sorted(outputs)]
    )

"""Choose the layers of an int8 model that stay in float, to keep its accuracy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from timonel.edge.report import LayerError
from timonel.errors import ModelError


def keep_accuracy(
    content: bytes,
    layers: Sequence[LayerError],
    convert: Callable[[Sequence[str]], bytes],
    loss: Callable[[bytes], float],
    most: float,
) -> tuple[bytes, tuple[LayerError, ...], tuple[str, ...]]:
    """Leave as few layers in float as the accuracy needs, those with the largest error first.

    Args:
        content: The model with all layers in int8.
        layers: The errors of its layers, largest first.
        convert: Converts the model with layers in float, given by name.
        loss: Returns a model's loss of accuracy, as a share.
        most: Largest loss of accuracy, as a share.

    Returns:
        The model, its layers, and notes.
    """
    tried: dict[int, tuple[bytes, float]] = {0: (content, loss(content))}

    def loss_with(count: int) -> float:
        if count not in tried:
            model = convert([layer.layer for layer in layers[:count]])
            tried[count] = (model, loss(model))
        return tried[count][1]

    low, high = 0, 0
    while loss_with(high) > most and high < len(layers):
        low, high = high, min(len(layers), max(1, 2 * high))
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if loss_with(middle) <= most else (middle, high)
    model, lost = tried[high]
    if lost > most:
        least = min(loss for _, loss in tried.values())
        raise ModelError(
            f"the accuracy falls by at least {least:.1%}, also with layers in float",
            hint=f"allow it with --max-accuracy-drop {math.ceil(least * 1000) / 1000:.1%}, "
            "or use --quantize float16",
        )
    marked = tuple(
        layer.model_copy(update={"in_float": index < high}) for index, layer in enumerate(layers)
    )
    notes = (f"{high} of {len(layers)} layers stay in float: the accuracy falls by {lost:.1%}",)
    return model, marked, notes

"""Layers that stay in float, with a model that only counts them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from timonel.edge.mixed import keep_accuracy
from timonel.edge.report import LayerError
from timonel.errors import ModelError


@pytest.mark.parametrize("needed", range(9))
def test_as_few_layers_as_needed_stay_in_float(needed: int) -> None:
    layers = [LayerError(layer=str(number), op="ADD", error=9 - number) for number in range(8)]
    converted: list[int] = []

    def convert(in_float: Sequence[str]) -> bytes:
        assert in_float == [layer.layer for layer in layers[: len(in_float)]]
        converted.append(len(in_float))
        return bytes([len(in_float)])

    def loss(model: bytes) -> float:
        return max(0, needed - sum(model)) / 10

    content, marked, (note,) = keep_accuracy(b"", layers, convert, loss, 0.0)
    assert sum(content) == min(needed, len(layers))
    assert [layer.in_float for layer in marked] == [number < needed for number in range(8)]
    assert note.startswith(f"{needed} of 8 layers stay in float")
    assert len(converted) == len(set(converted)) <= 6


def test_a_bound_that_cannot_be_kept_is_an_error() -> None:
    layers = [LayerError(layer=name, op="CONV_2D", error=1.0) for name in "ab"]
    losses = {0: 0.4, 1: 0.3, 2: 0.35}
    with pytest.raises(ModelError, match=r"at least 30\.0%"):
        keep_accuracy(
            b"", layers, lambda names: b"x" * len(names), lambda model: losses[len(model)], 0.005
        )


def test_the_advised_bound_can_be_kept() -> None:
    layers = [LayerError(layer="a", op="CONV_2D", error=1.0)]
    bound = r"falls by at least 30\.0%, .*: allow it with --max-accuracy-drop 30\.1%, or"
    with pytest.raises(ModelError, match=bound):
        keep_accuracy(b"", layers, lambda _: b"x", lambda _: 0.3004, 0.3)

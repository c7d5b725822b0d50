"""How outputs are read, on both kinds of final layers and of losses; no TensorFlow needed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf

from timonel.models.keras_model import inputs_of, output_kind_of

LABELS = ["a", "b", "c"]


class Shape(tuple[int | None, ...]):
    """As TensorFlow's shapes answer."""

    __slots__ = ()

    @property
    def rank(self) -> int:
        return len(self)


def output(*shape: int | None) -> dict[str, Any]:
    return {"out": SimpleNamespace(shape=Shape(shape))}


def model(activation: str | None = None, loss: Any = None) -> Any:
    """A Functional model whose last layer has an activation."""
    function = SimpleNamespace(__name__=activation) if activation else None
    layer = SimpleNamespace(activation=function)
    return SimpleNamespace(output_names=["last"], get_layer=lambda _: layer, loss=loss)


def loss(from_logits: bool | None, name: str = "sparse_categorical_crossentropy") -> Any:
    return SimpleNamespace(name=name, from_logits=from_logits)


@pytest.mark.parametrize(
    ("activation", "compiled", "given", "applied"),
    [
        ("softmax", None, "probabilities", None),
        ("softmax", loss(True), "probabilities", None),
        ("linear", loss(True), "logits", "softmax"),
        ("linear", loss(False), "probabilities", None),
        ("linear", "sparse_categorical_crossentropy", "probabilities", None),
        ("linear", [loss(True)], "logits", "softmax"),
        ("linear", {"last": loss(True, "binary_crossentropy")}, "logits", "sigmoid"),
        ("linear", None, "logits", "softmax"),
        (None, None, "scores", None),
        ("relu", SimpleNamespace(name="hinge"), "scores", None),
        ("linear", SimpleNamespace(_fn_kwargs={"from_logits": True}), "logits", "softmax"),
    ],
)
def test_probabilities_and_logits_are_told_apart(
    activation: str | None, compiled: Any, given: str, applied: str | None
) -> None:
    meaning = output_kind_of(model(activation, compiled), output(None, 3), LABELS)
    assert (meaning.task, meaning.output, meaning.applied) == ("classification", given, applied)
    assert meaning.because


@pytest.mark.parametrize("shape", [(None, 1), (None,)])
def test_one_column_for_two_labels_is_binary(shape: tuple[int | None, ...]) -> None:
    meaning = output_kind_of(model("linear", loss(True)), output(*shape), ["no", "yes"])
    assert (meaning.binary, meaning.applied) == (True, "sigmoid")


@pytest.mark.parametrize("shape", [(None, 4), (None, 1), (None, 3, 3)])
def test_an_output_that_fits_no_labels_is_left_as_it_is(shape: tuple[int | None, ...]) -> None:
    meaning = output_kind_of(model("softmax"), output(*shape), LABELS)
    assert meaning.task == "tensor"
    assert "3 labels, but an output of shape" in meaning.because


def test_without_labels_it_is_a_value_or_a_tensor() -> None:
    assert output_kind_of(model(), output(None, 1), None).task == "regression"
    assert output_kind_of(model(), output(None, 8, 8), None).task == "tensor"
    several = {**output(None, 1), "more": SimpleNamespace(shape=Shape((None, 1)))}
    assert output_kind_of(model(), several, None).because == "2 outputs"


def test_a_bare_operation_as_output_leaves_it_to_the_loss() -> None:
    def no_layer(_: str) -> Any:
        raise ValueError("No such layer")

    bare = SimpleNamespace(output_names=["add"], get_layer=no_layer, loss=loss(True))
    assert output_kind_of(bare, output(None, 3), LABELS).applied == "softmax"


def test_a_sequential_model_keeps_the_shape_that_it_declares() -> None:
    # Windows of tf.data have an unknown length.
    declared = SimpleNamespace(shape=(None, 28, 4), dtype="float32", name="keras_tensor_1")
    sequential = SimpleNamespace(inputs=[declared], built=True)
    found = inputs_of(sequential, tf.TensorSpec([None, None, 4]))
    assert found.specs == [tf.TensorSpec([None, 28, 4])]
    assert found.names == ("input",)
    unknown = SimpleNamespace(inputs=None, built=True)
    assert inputs_of(unknown, tf.TensorSpec([3, None, 4])).specs == [tf.TensorSpec([None, None, 4])]

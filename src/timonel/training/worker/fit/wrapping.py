"""Wrap ``Model.fit`` of either Keras, and add callbacks."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from timonel.training.worker.state.progress import Progress


def replace_fit(keras: Any, call: Callable[[Callable[..., Any], Any, dict[str, Any]], Any]) -> None:
    """Replace ``keras.Model.fit``.

    Args:
        keras: The Keras module.
        call: Takes the original bound to the model, the model, and the arguments by name.
    """
    original = keras.Model.fit
    signature = inspect.signature(original)

    @functools.wraps(original)
    def fit(model: Any, *args: Any, **kwargs: Any) -> Any:
        arguments = signature.bind(model, *args, **kwargs).arguments
        arguments.pop(next(iter(signature.parameters)))
        return call(functools.partial(original, model), model, dict(arguments))

    keras.Model.fit = fit


def with_callback(given: Any, ours: Any) -> Any:
    """Return the callbacks of a call with ours appended."""
    if given is None:
        return [ours]
    if isinstance(given, list | tuple):
        return [*given, ours]
    if hasattr(given, "callbacks"):  # a CallbackList, which Keras uses unchanged
        ours.set_model(given.model)
        ours.set_params(given.params)
        given.callbacks.append(ours)
        return given
    return [given, ours]


def recall(history: Any, progress: Progress) -> None:
    """Prepend the epochs of earlier generations to a ``History``, once."""
    if not progress.epochs or progress.epochs[0] in history.epoch:
        return
    history.epoch[:0] = progress.epochs
    for name, values in progress.history.items():
        history.history[name] = [*values, *history.history.get(name, [])]

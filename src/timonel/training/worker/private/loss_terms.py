"""Find loss terms of a ``train_step`` that Keras did not scale.

Keras scales losses for the replicas.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

_present = threading.local()
"""Each replica is traced in its own thread."""


def begin(model: Any) -> None:
    """Start watching the ``train_step`` of a model that this thread traces."""
    _present.model, _present.scaled = model, set()
    _present.is_scaled, _present.is_mixed = False, False


def end() -> bool:
    """Stop watching; return whether the step took gradients of an unscaled term.

    Terms in functions that the step calls are invisible, and count as scaled.
    """
    _present.model = None
    return not _present.is_scaled or _present.is_mixed


def note_scaled(value: Any) -> Any:
    """Record a scaled loss, and return it."""
    if getattr(_present, "model", None) is not None:
        _present.is_scaled = True
        if hasattr(value, "graph"):
            _present.scaled.add((id(value.graph), value.name))
    return value


def watch_tapes() -> None:
    """Patch ``GradientTape.gradient`` permanently to inspect its loss."""
    import tensorflow as tf  # noqa: PLC0415 - only processes that train import it

    tf.GradientTape.gradient = _looking(tf.GradientTape.gradient)


def _looking(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def gradient(self: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
        model = getattr(_present, "model", None)
        if model is not None and hasattr(target, "graph"):
            _present.is_mixed |= _reaches_variables(target, model)
        return original(self, target, *args, **kwargs)

    return gradient


def _reaches_variables(target: Any, model: Any) -> bool:
    """Whether an unscaled loss depends on a trained variable.

    Paths through a scaled loss do not count.
    """
    trained = {target.graph.capture(_handle(found)).name for found in model.trainable_variables}
    waiting, seen = [target], set()
    while waiting:
        value = waiting.pop()
        if value.name in seen or (id(value.graph), value.name) in _present.scaled:
            continue
        if value.name in trained:
            return True
        seen.add(value.name)
        if not value.op.type.endswith("PartitionedCall"):
            waiting += value.op.inputs
    return False


def _handle(variable: Any) -> Any:
    """Return the resource handle of a variable on this replica.

    Works for both Kerases.
    """
    return variable.handle if hasattr(variable, "handle") else variable.value.handle

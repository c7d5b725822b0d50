"""Patch Keras classes in place; helpers for patching both Kerases' optimizers."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from timonel.training.worker.numerics import exchange, gradients
from timonel.training.worker.numerics.gradients import Plan
from timonel.training.worker.numerics.learning_rate import Rule

WRAPPED = "_timonel_wrapped"
"""Marks optimizers inside another optimizer, which does all the work for them."""
_DEPTH = "_timonel_updating"
_originals: list[tuple[Any, str, Any]] = []


def replace(owner: Any, name: str, value: Any) -> None:
    """Replace an attribute of a class."""
    _originals.append((owner, name, owner.__dict__[name]))
    setattr(owner, name, value)


def restore() -> None:
    """Restore all replaced attributes."""
    for owner, name, original in reversed(_originals):
        setattr(owner, name, original)
    _originals.clear()


def is_changed(value: Any) -> bool:
    """Whether a value is an instance of a patched class."""
    return any(isinstance(value, owner) for owner, _, _ in _originals)


def mark_what_is_wrapped_by(scaler: Any) -> None:
    """Make a loss-scaling optimizer mark its inner one.

    The inner one must not reduce again.
    """
    original = scaler.build

    @functools.wraps(original)
    def build(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        setattr(optimizer.inner_optimizer, WRAPPED, True)
        return original(optimizer, *args, **kwargs)

    replace(scaler, "build", build)


def reduced(
    optimizer: Any,
    found: list[Any],
    variables: list[Any],
    plan: Plan,
    reduce: Callable[[Any, Any], Any],
) -> list[Any]:
    """Return gradients summed over replicas; None and overwritten values are unchanged."""
    travels = [
        gradient is not None and not _is_overwritten(variable)
        for gradient, variable in zip(found, variables, strict=True)
    ]
    if not any(travels):
        return found
    theirs = [variable for variable, does in zip(variables, travels, strict=True) if does]

    def reduce_list(values: list[Any]) -> list[Any]:
        if exchange.is_between_workers():
            return exchange.between_workers(values)
        # Compression may send fewer values than there are gradients. The variables only tell on
        # which devices the sums are needed, so any of them will do.
        pairs = reduce(optimizer, list(zip(values, theirs, strict=False)))
        return [value for value, _ in pairs]

    sums = iter(
        gradients.reduced(
            [gradient for gradient, does in zip(found, travels, strict=True) if does],
            plan.compression,
            reduce_list,
        )
    )
    return [next(sums) if does else gradient for gradient, does in zip(found, travels, strict=True)]


def _is_overwritten(variable: Any) -> bool:
    # Scales of float8 layers: Keras assigns their gradient instead of applying it.
    return bool(getattr(variable, "overwrite_with_gradient", False))


def while_updating(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap an optimizer's method to tell `scaled` about updates."""

    @functools.wraps(original)
    def update(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        with _updating(optimizer):
            return original(optimizer, *args, **kwargs)

    return update


@contextlib.contextmanager
def _updating(optimizer: Any) -> Iterator[None]:
    # Replicas are traced in threads that run one at a time, so a counter suffices.
    optimizer.__dict__[_DEPTH] = optimizer.__dict__.get(_DEPTH, 0) + 1
    try:
        yield
    finally:
        optimizer.__dict__[_DEPTH] -= 1


def scaled(original: Callable[[Any], Any], rule: Rule) -> Callable[[Any], Any]:
    """Wrap a learning-rate getter to return scaled rates during updates."""

    @functools.wraps(original)
    def current(optimizer: Any) -> Any:
        own = original(optimizer)
        if rule.changes_nothing or not optimizer.__dict__.get(_DEPTH):
            return own
        import tensorflow as tf  # noqa: PLC0415 - only processes that train import it

        own = tf.convert_to_tensor(own)
        return own * tf.cast(rule.factor(tf.convert_to_tensor(optimizer.iterations)), own.dtype)

    return current

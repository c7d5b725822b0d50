"""Changing classes of a Keras in place, and what both Kerases' optimizers are changed by."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from timonel.training.worker.numerics import exchange, gradients
from timonel.training.worker.numerics.gradients import Plan
from timonel.training.worker.numerics.learning_rate import Rule

WRAPPED = "_timonel_wrapped"
"""Marks optimizers that are wrapped in another, which has done all that is to be done."""
_DEPTH = "_timonel_updating"
_originals: list[tuple[Any, str, Any]] = []


def replace(owner: Any, name: str, value: Any) -> None:
    """Put ``value`` in the place of what a class has under a name."""
    _originals.append((owner, name, owner.__dict__[name]))
    setattr(owner, name, value)


def restore() -> None:
    """Put everything back."""
    for owner, name, original in reversed(_originals):
        setattr(owner, name, original)
    _originals.clear()


def is_changed(value: Any) -> bool:
    """Whether something is of a class that was changed."""
    return any(isinstance(value, owner) for owner, _, _ in _originals)


def mark_what_is_wrapped_by(scaler: Any) -> None:
    """Let a loss-scaling optimizer mark its inner one, which has nothing left to reduce."""
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
    """Return the gradients' sums over replicas; what is none, or no gradient, stays as it is."""
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
        # Where fewer values travel than there are gradients, whose variables they are given is
        # of no account: these only say on which devices the sums are wanted.
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
    # The scales of float8 layers: Keras assigns their gradient instead of applying it.
    return bool(getattr(variable, "overwrite_with_gradient", False))


def while_updating(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of an optimizer that lets `scaled` know that an update is made."""

    @functools.wraps(original)
    def update(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        with _updating(optimizer):
            return original(optimizer, *args, **kwargs)

    return update


@contextlib.contextmanager
def _updating(optimizer: Any) -> Iterator[None]:
    # Replicas are traced in threads of which one runs at a time, so counting is enough.
    optimizer.__dict__[_DEPTH] = optimizer.__dict__.get(_DEPTH, 0) + 1
    try:
        yield
    finally:
        optimizer.__dict__[_DEPTH] -= 1


def scaled(original: Callable[[Any], Any], rule: Rule) -> Callable[[Any], Any]:
    """Return what gives a learning rate: the script's own, scaled while an update is made."""

    @functools.wraps(original)
    def current(optimizer: Any) -> Any:
        own = original(optimizer)
        if rule.changes_nothing or not optimizer.__dict__.get(_DEPTH):
            return own
        import tensorflow as tf  # noqa: PLC0415 - only processes that train pay for it

        own = tf.convert_to_tensor(own)
        return own * tf.cast(rule.factor(tf.convert_to_tensor(optimizer.iterations)), own.dtype)

    return current

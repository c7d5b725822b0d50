"""Patch the optimizers of both Kerases for training.

Classes are patched, so that every optimizer that a script creates, for ``fit`` or for its own loop,
follows the job's options:

- Gradients are summed over replicas before all other processing. Keras 3 does this last: it clips
  each replica's gradients separately, and lets each decide whether its gradients are finite
  (float16), so that workers that disagree wait for each other forever.
- Sums can span several batches, and use a smaller type for communication (`gradients`).
- The learning rate can be scaled during updates (`learning_rate`).

A test pins the names and signatures, so that an incompatible release fails there and not in a
user's job.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from timonel.errors import SpecError
from timonel.training.worker.numerics import gradients
from timonel.training.worker.numerics.gradients import GradientPlan
from timonel.training.worker.numerics.learning_rate import RateScaling
from timonel.training.worker.private.gradient_sums import (
    add_sums_keras3,
    add_sums_tf_keras,
    innermost,
    with_accumulation,
)

_WRAPPED = "_timonel_wrapped"
"""Marks optimizers inside another optimizer, which does all the work for them."""
_DEPTH = "_timonel_updating"
_originals: list[tuple[Any, str, Any]] = []


def install(keras: Any, plan: GradientPlan, rule: RateScaling) -> None:
    """Patch the optimizers of ``keras``; a second call replaces the first."""
    for owner, name, original in reversed(_originals):
        setattr(owner, name, original)
    _originals.clear()
    (_install_keras3 if keras.__name__ == "keras" else _install_tf_keras)(plan, rule)


def learning_rate(optimizer: Any, rule: RateScaling) -> float | None:
    """Return the learning rate of the next update, or None."""
    inner = innermost(optimizer)
    own, updates = getattr(inner, "learning_rate", None), getattr(inner, "iterations", None)
    if own is None or updates is None:
        return None
    own, updates = (x.numpy() if hasattr(x, "numpy") else x for x in (own, updates))
    return float(own) * float(rule.factor(int(updates)))


def accumulates_by_itself(optimizer: Any) -> bool:
    """Whether the script's optimizer accumulates gradients itself."""
    return bool(getattr(innermost(optimizer), "gradient_accumulation_steps", None))


def require_supported(optimizer: Any) -> None:
    """Check that the job's options apply to an optimizer."""
    if not any(isinstance(innermost(optimizer), owner) for owner, _, _ in _originals):
        raise SpecError(
            "the job's options for gradients and the learning rate do not apply to "
            f"{type(optimizer).__module__}.{type(optimizer).__name__}",
            hint="use an optimizer of keras.optimizers that is not a legacy one",
        )


def _require_updates_without_conditions(optimizer: Any) -> None:
    """Check that replicas can merge an optimizer's updates, which they cannot within conditions."""
    if tf.distribute.get_strategy().num_replicas_in_sync == 1:
        return
    # TensorFlow runs each replica of a process in a thread that knows the graph of its step.
    own = tf.compat.v1.get_default_graph()
    if getattr(threading.current_thread(), "graph", own) is not own:
        raise SpecError(
            "an optimizer updates within tf.cond, a loop or another tf.function of the step, where "
            "several replicas cannot add up their gradients",
            hint="accumulate with --accumulate-gradients, or call apply_gradients outside of it",
        )
    cures = {
        "gradient_accumulation_steps": "drop it, and train with --accumulate-gradients",
        "ema_overwrite_frequency": "drop it: use_ema alone works",
    }
    for name, cure in cures.items():
        if found := getattr(optimizer, name, None):
            raise SpecError(
                f"{type(optimizer).__name__}({name}={found}) does not work with several replicas",
                hint=cure,
            )


def _install_keras3(plan: GradientPlan, rule: RateScaling) -> None:
    from keras.src.backend.tensorflow.optimizer import TFOptimizer  # noqa: PLC0415
    from keras.src.optimizers.base_optimizer import BaseOptimizer  # noqa: PLC0415
    from keras.src.optimizers.loss_scale_optimizer import LossScaleOptimizer  # noqa: PLC0415

    reduce = TFOptimizer._all_reduce_sum_gradients

    def apply(
        original: Callable[..., Any], optimizer: Any, grads: Any, trainable_variables: Any = None
    ) -> Any:
        grads = list(grads)
        if getattr(optimizer, _WRAPPED, False) or not grads:
            return original(optimizer, grads, trainable_variables)
        _require_updates_without_conditions(innermost(optimizer))
        if trainable_variables is not None and not optimizer.built:
            with tf.init_scope():  # several replicas of a process fail to do so in a step
                optimizer.build(list(trainable_variables))
        variables = list(trainable_variables or innermost(optimizer)._trainable_variables)

        def update(found: list[Any]) -> None:
            sums = _reduced(optimizer, found, variables, plan, reduce)
            original(optimizer, sums, variables)

        return with_accumulation(optimizer, grads, variables, plan, update)

    def build(original: Callable[..., Any], optimizer: Any, variables: Any) -> Any:
        result = original(optimizer, variables)
        if plan.accumulate > 1 and not isinstance(optimizer, LossScaleOptimizer):
            add_sums_keras3(optimizer, list(variables))
        return result

    rate = "_get_current_learning_rate"
    _replace(BaseOptimizer, "apply", apply)
    _replace(LossScaleOptimizer, "apply", apply)
    _replace(BaseOptimizer, "build", build)
    _replace(LossScaleOptimizer, "build", _marking_inner)
    _replace(TFOptimizer, "_all_reduce_sum_gradients", lambda *given: list(given[-1]))
    _replace(BaseOptimizer, "_backend_apply_gradients", _noting_updates)
    _replace(BaseOptimizer, rate, functools.partial(_scaled, rule))


def _install_tf_keras(plan: GradientPlan, rule: RateScaling) -> None:
    from tf_keras.src.mixed_precision.loss_scale_optimizer import (  # noqa: PLC0415
        LossScaleOptimizerV3,
    )
    from tf_keras.src.optimizers.optimizer import Optimizer, _BaseOptimizer  # noqa: PLC0415

    def apply(
        original: Callable[..., Any], optimizer: Any, grads_and_vars: Any, *args: Any, **kwargs: Any
    ) -> Any:
        pairs = list(grads_and_vars)
        if getattr(optimizer, _WRAPPED, False) or not pairs:
            return original(optimizer, pairs, *args, **kwargs)
        _require_updates_without_conditions(innermost(optimizer))
        found, variables = [list(part) for part in zip(*pairs, strict=True)]
        if plan.accumulate > 1:
            with tf.init_scope():
                optimizer.build(variables)

        def update(found: list[Any]) -> None:
            original(optimizer, list(zip(found, variables, strict=True)), *args, **kwargs)

        with_accumulation(optimizer, found, variables, plan, update)
        return optimizer.iterations

    def aggregate(original: Callable[..., Any], optimizer: Any, grads_and_vars: Any) -> list[Any]:
        found, variables = [list(part) for part in zip(*grads_and_vars, strict=True)]
        sums = _reduced(optimizer, found, variables, plan, original)
        return list(zip(sums, variables, strict=True))

    def build(original: Callable[..., Any], optimizer: Any, variables: Any) -> Any:
        result = original(optimizer, variables)
        if plan.accumulate > 1:
            add_sums_tf_keras(optimizer, list(variables))
        return result

    _replace(Optimizer, "apply_gradients", apply)
    _replace(LossScaleOptimizerV3, "apply_gradients", apply)
    _replace(Optimizer, "aggregate_gradients", aggregate)
    _replace(_BaseOptimizer, "build", build)
    _replace(LossScaleOptimizerV3, "build", _marking_inner)
    _replace(_BaseOptimizer, "apply_gradients", _noting_updates)
    _replace(_BaseOptimizer, "learning_rate", functools.partial(_scaled, rule))


def _replace(owner: Any, name: str, replacement: Callable[..., Any]) -> None:
    """Replace a method or a property's getter until the next `install`; it gets the original."""
    original = owner.__dict__[name]
    _originals.append((owner, name, original))
    is_property = isinstance(original, property)
    function = original.fget if is_property else original

    @functools.wraps(function)
    def method(*args: Any, **kwargs: Any) -> Any:
        return replacement(function, *args, **kwargs)

    setattr(owner, name, property(method, original.fset) if is_property else method)


def _marking_inner(original: Callable[..., Any], optimizer: Any, *args: Any, **kwargs: Any) -> Any:
    """Make a loss-scaling optimizer mark its inner one, which must not reduce again."""
    setattr(optimizer.inner_optimizer, _WRAPPED, True)
    return original(optimizer, *args, **kwargs)


def _noting_updates(original: Callable[..., Any], optimizer: Any, *args: Any, **kwargs: Any) -> Any:
    """Wrap an optimizer's method to tell `_scaled` about updates."""
    # Replicas are traced in threads that run one at a time, so a counter suffices.
    optimizer.__dict__[_DEPTH] = optimizer.__dict__.get(_DEPTH, 0) + 1
    try:
        return original(optimizer, *args, **kwargs)
    finally:
        optimizer.__dict__[_DEPTH] -= 1


def _scaled(rule: RateScaling, original: Callable[[Any], Any], optimizer: Any) -> Any:
    """Wrap a learning-rate getter to return scaled rates during updates."""
    own = original(optimizer)
    if rule.changes_nothing or not optimizer.__dict__.get(_DEPTH):
        return own
    own = tf.convert_to_tensor(own)
    return own * tf.cast(rule.factor(tf.convert_to_tensor(optimizer.iterations)), own.dtype)


def _reduced(
    optimizer: Any,
    found: list[Any],
    variables: list[Any],
    plan: GradientPlan,
    reduce: Callable[[Any, Any], Any],
) -> list[Any]:
    """Return gradients summed over replicas; None and overwritten values are unchanged."""
    # Keras assigns the gradient of the scales of float8 layers instead of applying it.
    sent = [
        place
        for place, (gradient, variable) in enumerate(zip(found, variables, strict=True))
        if gradient is not None and not getattr(variable, "overwrite_with_gradient", False)
    ]
    if not sent:
        return found

    def reduce_list(values: list[Any]) -> list[Any]:
        if gradients.is_between_workers():
            return gradients.sum_between_workers(values)
        # Compression may send fewer values than there are gradients. The variables only tell on
        # which devices the sums are needed, so any of them will do.
        targets = [variables[place] for place in sent]
        return [value for value, _ in reduce(optimizer, list(zip(values, targets, strict=False)))]

    sums = gradients.reduced([found[place] for place in sent], plan.compression, reduce_list)
    sent_sums = dict(zip(sent, sums, strict=True))
    return [sent_sums.get(place, gradient) for place, gradient in enumerate(found)]

"""Every private name of the optimizers of both Kerases that training leans on.

The optimizers are changed as classes, so that whatever optimizer a script makes, for ``fit`` or
for a loop of its own, does what the job asks:

- Gradients are summed over replicas before anything else is done with them. Keras 3 does this last
  of all: it clips the gradients of each replica apart, and lets each decide for itself whether its
  gradients are finite (float16), so that workers that disagree wait for each other for ever.
- The sums can be over several batches, and travel in a smaller type (`gradients`).
- The learning rate can be scaled while an update is made (`learning_rate`).

A test calls `missing_names` and pins the signatures, so that a release that moves something fails
there and not in a user's job.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from timonel.errors import SpecError
from timonel.training.worker.numerics import gradients
from timonel.training.worker.numerics.gradients import Plan
from timonel.training.worker.numerics.learning_rate import Rule
from timonel.training.worker.private.gradient_sums import (
    add_sums_keras3,
    add_sums_tf_keras,
    innermost,
    with_accumulation,
)

_DEPTH = "_timonel_updating"
_WRAPPED = "_timonel_wrapped"
_originals: list[tuple[Any, str, Any]] = []


def missing_names() -> list[str]:
    """Return the private names that are needed and that are not there, of both Kerases."""
    from keras.src import optimizers as of_keras3  # noqa: PLC0415 - TensorFlow loads here
    from keras.src.backend.tensorflow import optimizer as shell  # noqa: PLC0415

    wanted = [
        (shell.TFOptimizer, ("_all_reduce_sum_gradients", "_var_key")),
        (
            of_keras3.base_optimizer.BaseOptimizer,
            (
                "build",
                "apply",
                "_backend_apply_gradients",
                "_get_current_learning_rate",
                "_get_variable_index",
                "_track_variable",
                "_overwrite_variable_with_gradient",
            ),
        ),
        (of_keras3.LossScaleOptimizer, ("apply", "build")),
    ]
    with contextlib.suppress(ImportError):
        from tf_keras.src.mixed_precision import loss_scale_optimizer  # noqa: PLC0415
        from tf_keras.src.optimizers import optimizer  # noqa: PLC0415

        wanted += [
            (optimizer._BaseOptimizer, ("build", "apply_gradients", "learning_rate", "_var_key")),
            (optimizer.Optimizer, ("aggregate_gradients", "apply_gradients")),
            (loss_scale_optimizer.LossScaleOptimizerV3, ("apply_gradients", "build")),
        ]
    return [name for holder, names in wanted for name in names if not hasattr(holder, name)]


def install(keras: Any, plan: Plan, rule: Rule) -> None:
    """Change the optimizers of ``keras``, once: a second call takes the place of the first."""
    uninstall()
    if keras.__name__ == "keras":
        _install_keras3(plan, rule)
    else:
        _install_tf_keras(plan, rule)


def uninstall() -> None:
    """Put everything back."""
    for owner, name, original in reversed(_originals):
        setattr(owner, name, original)
    _originals.clear()


def learning_rate(optimizer: Any, rule: Rule) -> float | None:
    """Return the learning rate of the next update; None if the optimizer shows none."""
    inner = innermost(optimizer)
    own, updates = getattr(inner, "learning_rate", None), getattr(inner, "iterations", None)
    if own is None or updates is None:
        return None
    return float(_number(own)) * float(rule.factor(int(_number(updates))))


def accumulates_by_itself(optimizer: Any) -> bool:
    """Whether the script has asked its optimizer itself to add up gradients of several batches."""
    return bool(getattr(innermost(optimizer), "gradient_accumulation_steps", None))


def _install_keras3(plan: Plan, rule: Rule) -> None:
    from keras.src.backend.tensorflow.optimizer import TFOptimizer  # noqa: PLC0415
    from keras.src.optimizers.base_optimizer import BaseOptimizer  # noqa: PLC0415
    from keras.src.optimizers.loss_scale_optimizer import LossScaleOptimizer  # noqa: PLC0415

    reduce = TFOptimizer._all_reduce_sum_gradients

    def apply_of(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def apply(optimizer: Any, grads: Any, trainable_variables: Any = None) -> Any:
            grads = list(grads)
            if getattr(optimizer, _WRAPPED, False) or not grads:
                return original(optimizer, grads, trainable_variables)
            if trainable_variables is not None and not optimizer.built:
                optimizer.build(list(trainable_variables))
            variables = list(trainable_variables or innermost(optimizer)._trainable_variables)

            def update(found: list[Any]) -> None:
                original(optimizer, _reduced(optimizer, found, variables, plan, reduce), variables)

            return with_accumulation(optimizer, grads, variables, plan, update)

        return apply

    def build(optimizer: Any, variables: Any) -> Any:
        result = base_build(optimizer, variables)
        if plan.accumulate > 1 and not isinstance(optimizer, LossScaleOptimizer):
            add_sums_keras3(optimizer, list(variables))
        return result

    base_build = BaseOptimizer.build
    _replace(BaseOptimizer, "apply", apply_of(BaseOptimizer.apply))
    _replace(LossScaleOptimizer, "apply", apply_of(LossScaleOptimizer.apply))
    _replace(BaseOptimizer, "build", functools.wraps(base_build)(build))
    _mark_what_is_wrapped_by(LossScaleOptimizer)
    _replace(TFOptimizer, "_all_reduce_sum_gradients", lambda _, pairs: list(pairs))
    _replace(
        BaseOptimizer,
        "_backend_apply_gradients",
        _while_updating(BaseOptimizer._backend_apply_gradients),
    )
    _replace(
        BaseOptimizer,
        "_get_current_learning_rate",
        _scaled(BaseOptimizer._get_current_learning_rate, rule),
    )


def _install_tf_keras(plan: Plan, rule: Rule) -> None:
    from tf_keras.src.mixed_precision.loss_scale_optimizer import (  # noqa: PLC0415
        LossScaleOptimizerV3,
    )
    from tf_keras.src.optimizers.optimizer import Optimizer, _BaseOptimizer  # noqa: PLC0415

    reduce = Optimizer.aggregate_gradients

    def apply_of(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def apply_gradients(optimizer: Any, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
            pairs = list(grads_and_vars)
            if getattr(optimizer, _WRAPPED, False) or not pairs:
                return original(optimizer, pairs, *args, **kwargs)
            found, variables = [list(part) for part in zip(*pairs, strict=True)]
            if plan.accumulate > 1:
                import tensorflow as tf  # noqa: PLC0415 - only processes that train pay for it

                with tf.init_scope():
                    optimizer.build(variables)

            def update(found: list[Any]) -> None:
                original(optimizer, list(zip(found, variables, strict=True)), *args, **kwargs)

            with_accumulation(optimizer, found, variables, plan, update)
            return optimizer.iterations

        return apply_gradients

    def aggregate(optimizer: Any, grads_and_vars: Any) -> list[Any]:
        found, variables = [list(part) for part in zip(*grads_and_vars, strict=True)]
        sums = _reduced(optimizer, found, variables, plan, reduce)
        return list(zip(sums, variables, strict=True))

    def build(optimizer: Any, var_list: Any) -> Any:
        result = base_build(optimizer, var_list)
        if plan.accumulate > 1:
            add_sums_tf_keras(optimizer, list(var_list))
        return result

    base_build = _BaseOptimizer.build
    own_rate: Any = _BaseOptimizer.learning_rate
    _replace(Optimizer, "apply_gradients", apply_of(Optimizer.apply_gradients))
    _replace(
        LossScaleOptimizerV3, "apply_gradients", apply_of(LossScaleOptimizerV3.apply_gradients)
    )
    _replace(Optimizer, "aggregate_gradients", functools.wraps(reduce)(aggregate))
    _replace(_BaseOptimizer, "build", functools.wraps(base_build)(build))
    _mark_what_is_wrapped_by(LossScaleOptimizerV3)
    _replace(_BaseOptimizer, "apply_gradients", _while_updating(_BaseOptimizer.apply_gradients))
    _replace(_BaseOptimizer, "learning_rate", property(_scaled(own_rate.fget, rule), own_rate.fset))


def _mark_what_is_wrapped_by(scaler: Any) -> None:
    """Let a loss-scaling optimizer mark its inner one, which has nothing left to reduce."""
    original = scaler.build

    @functools.wraps(original)
    def build(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        setattr(optimizer.inner_optimizer, _WRAPPED, True)
        return original(optimizer, *args, **kwargs)

    _replace(scaler, "build", build)


def _replace(owner: Any, name: str, value: Any) -> None:
    _originals.append((owner, name, owner.__dict__[name]))
    setattr(owner, name, value)


def _reduced(
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


def _while_updating(original: Callable[..., Any]) -> Callable[..., Any]:
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


def _scaled(original: Callable[[Any], Any], rule: Rule) -> Callable[[Any], Any]:
    @functools.wraps(original)
    def current(optimizer: Any) -> Any:
        own = original(optimizer)
        if rule.changes_nothing or not optimizer.__dict__.get(_DEPTH):
            return own
        import tensorflow as tf  # noqa: PLC0415 - only processes that train pay for it

        own = tf.convert_to_tensor(own)
        return own * tf.cast(rule.factor(tf.convert_to_tensor(optimizer.iterations)), own.dtype)

    return current


def _number(value: Any) -> Any:
    return value.numpy() if hasattr(value, "numpy") else value


def require_supported(optimizer: Any) -> None:
    """Check that the job's options reach an optimizer.

    Raises:
        SpecError: They do not.
    """
    if not any(isinstance(innermost(optimizer), owner) for owner, _, _ in _originals):
        raise SpecError(
            "expected an optimizer of Keras for what was asked of gradients and the learning rate, "
            f"got {type(optimizer).__module__}.{type(optimizer).__name__}",
            hint="legacy optimizers are not supported: use those of keras.optimizers",
        )

"""Patch tf-keras' optimizers, by private names."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from timonel.training.worker.numerics.gradients import Plan
from timonel.training.worker.numerics.learning_rate import Rule
from timonel.training.worker.private import class_patching
from timonel.training.worker.private.gradient_sums import add_sums_tf_keras, with_accumulation


def missing_names() -> list[str]:
    """Return the required private names that are missing; none without tf-keras."""
    try:
        from tf_keras.src.mixed_precision import loss_scale_optimizer  # noqa: PLC0415
        from tf_keras.src.optimizers import optimizer  # noqa: PLC0415
    except ImportError:
        return []
    wanted = [
        (optimizer._BaseOptimizer, ("build", "apply_gradients", "learning_rate", "_var_key")),
        (optimizer.Optimizer, ("aggregate_gradients", "apply_gradients")),
        (loss_scale_optimizer.LossScaleOptimizerV3, ("apply_gradients", "build")),
    ]
    return [name for holder, names in wanted for name in names if not hasattr(holder, name)]


def install(plan: Plan, rule: Rule) -> None:
    """Patch the optimizers of tf-keras."""
    from tf_keras.src.mixed_precision.loss_scale_optimizer import (  # noqa: PLC0415
        LossScaleOptimizerV3,
    )
    from tf_keras.src.optimizers.optimizer import Optimizer, _BaseOptimizer  # noqa: PLC0415

    reduce = Optimizer.aggregate_gradients

    def apply_of(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def apply_gradients(optimizer: Any, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
            pairs = list(grads_and_vars)
            if getattr(optimizer, class_patching.WRAPPED, False) or not pairs:
                return original(optimizer, pairs, *args, **kwargs)
            found, variables = [list(part) for part in zip(*pairs, strict=True)]
            if plan.accumulate > 1:
                import tensorflow as tf  # noqa: PLC0415 - only processes that train import it

                with tf.init_scope():
                    optimizer.build(variables)

            def update(found: list[Any]) -> None:
                original(optimizer, list(zip(found, variables, strict=True)), *args, **kwargs)

            with_accumulation(optimizer, found, variables, plan, update)
            return optimizer.iterations

        return apply_gradients

    def aggregate(optimizer: Any, grads_and_vars: Any) -> list[Any]:
        found, variables = [list(part) for part in zip(*grads_and_vars, strict=True)]
        sums = class_patching.reduced(optimizer, found, variables, plan, reduce)
        return list(zip(sums, variables, strict=True))

    def build(optimizer: Any, var_list: Any) -> Any:
        result = base_build(optimizer, var_list)
        if plan.accumulate > 1:
            add_sums_tf_keras(optimizer, list(var_list))
        return result

    base_build = _BaseOptimizer.build
    own_rate: Any = _BaseOptimizer.learning_rate
    class_patching.replace(Optimizer, "apply_gradients", apply_of(Optimizer.apply_gradients))
    class_patching.replace(
        LossScaleOptimizerV3, "apply_gradients", apply_of(LossScaleOptimizerV3.apply_gradients)
    )
    class_patching.replace(Optimizer, "aggregate_gradients", functools.wraps(reduce)(aggregate))
    class_patching.replace(_BaseOptimizer, "build", functools.wraps(base_build)(build))
    class_patching.mark_what_is_wrapped_by(LossScaleOptimizerV3)
    class_patching.replace(
        _BaseOptimizer,
        "apply_gradients",
        class_patching.while_updating(_BaseOptimizer.apply_gradients),
    )
    class_patching.replace(
        _BaseOptimizer,
        "learning_rate",
        property(class_patching.scaled(own_rate.fget, rule), own_rate.fset),
    )

"""Patch Keras 3's optimizers, by private names."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from timonel.training.worker.numerics.gradients import Plan
from timonel.training.worker.numerics.learning_rate import Rule
from timonel.training.worker.private import class_patching
from timonel.training.worker.private.gradient_sums import (
    add_sums_keras3,
    innermost,
    with_accumulation,
)


def missing_names() -> list[str]:
    """Return the required private names that are missing."""
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
    return [name for holder, names in wanted for name in names if not hasattr(holder, name)]


def install(plan: Plan, rule: Rule) -> None:
    """Patch the optimizers of Keras 3."""
    from keras.src.backend.tensorflow.optimizer import TFOptimizer  # noqa: PLC0415
    from keras.src.optimizers.base_optimizer import BaseOptimizer  # noqa: PLC0415
    from keras.src.optimizers.loss_scale_optimizer import LossScaleOptimizer  # noqa: PLC0415

    reduce = TFOptimizer._all_reduce_sum_gradients

    def apply_of(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def apply(optimizer: Any, grads: Any, trainable_variables: Any = None) -> Any:
            grads = list(grads)
            if getattr(optimizer, class_patching.WRAPPED, False) or not grads:
                return original(optimizer, grads, trainable_variables)
            if trainable_variables is not None and not optimizer.built:
                optimizer.build(list(trainable_variables))
            variables = list(trainable_variables or innermost(optimizer)._trainable_variables)

            def update(found: list[Any]) -> None:
                original(
                    optimizer,
                    class_patching.reduced(optimizer, found, variables, plan, reduce),
                    variables,
                )

            return with_accumulation(optimizer, grads, variables, plan, update)

        return apply

    def build(optimizer: Any, variables: Any) -> Any:
        result = base_build(optimizer, variables)
        if plan.accumulate > 1 and not isinstance(optimizer, LossScaleOptimizer):
            add_sums_keras3(optimizer, list(variables))
        return result

    base_build = BaseOptimizer.build
    class_patching.replace(BaseOptimizer, "apply", apply_of(BaseOptimizer.apply))
    class_patching.replace(LossScaleOptimizer, "apply", apply_of(LossScaleOptimizer.apply))
    class_patching.replace(BaseOptimizer, "build", functools.wraps(base_build)(build))
    class_patching.mark_what_is_wrapped_by(LossScaleOptimizer)
    class_patching.replace(TFOptimizer, "_all_reduce_sum_gradients", lambda _, pairs: list(pairs))
    class_patching.replace(
        BaseOptimizer,
        "_backend_apply_gradients",
        class_patching.while_updating(BaseOptimizer._backend_apply_gradients),
    )
    class_patching.replace(
        BaseOptimizer,
        "_get_current_learning_rate",
        class_patching.scaled(BaseOptimizer._get_current_learning_rate, rule),
    )

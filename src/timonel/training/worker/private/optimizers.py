"""Patch the optimizers of both Kerases for training.

Classes are patched, so that every optimizer that a script creates, for ``fit`` or for its own loop,
follows the job's options:

- Gradients are summed over replicas before all other processing. Keras 3 does this last: it clips
  each replica's gradients separately, and lets each decide whether its gradients are finite
  (float16), so that workers that disagree wait for each other forever.
- Sums can span several batches, and use a smaller type for communication (`gradients`).
- The learning rate can be scaled during updates (`learning_rate`).

A test calls `missing_names` and pins the signatures, so that an incompatible release fails there
and not in a user's job.
"""

from __future__ import annotations

from typing import Any

from timonel.errors import SpecError
from timonel.training.worker.numerics.gradients import Plan
from timonel.training.worker.numerics.learning_rate import Rule
from timonel.training.worker.private import class_patching, optimizers_keras3, optimizers_tf_keras
from timonel.training.worker.private.gradient_sums import innermost


def missing_names() -> list[str]:
    """Return the required private names of both Kerases that are missing."""
    return [*optimizers_keras3.missing_names(), *optimizers_tf_keras.missing_names()]


def install(keras: Any, plan: Plan, rule: Rule) -> None:
    """Patch the optimizers of ``keras``; a second call replaces the first."""
    class_patching.restore()
    if keras.__name__ == "keras":
        optimizers_keras3.install(plan, rule)
    else:
        optimizers_tf_keras.install(plan, rule)


def learning_rate(optimizer: Any, rule: Rule) -> float | None:
    """Return the learning rate of the next update, or None."""
    inner = innermost(optimizer)
    own, updates = getattr(inner, "learning_rate", None), getattr(inner, "iterations", None)
    if own is None or updates is None:
        return None
    return float(_number(own)) * float(rule.factor(int(_number(updates))))


def accumulates_by_itself(optimizer: Any) -> bool:
    """Whether the script's optimizer accumulates gradients itself."""
    return bool(getattr(innermost(optimizer), "gradient_accumulation_steps", None))


def require_supported(optimizer: Any) -> None:
    """Check that the job's options apply to an optimizer.

    Raises:
        SpecError: The optimizer is not supported.
    """
    if not class_patching.is_changed(innermost(optimizer)):
        raise SpecError(
            "expected an optimizer of Keras for what was asked of gradients and the learning rate, "
            f"got {type(optimizer).__module__}.{type(optimizer).__name__}",
            hint="legacy optimizers are not supported: use those of keras.optimizers",
        )


def _number(value: Any) -> Any:
    return value.numpy() if hasattr(value, "numpy") else value

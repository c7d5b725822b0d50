"""Every way in which training changes the optimizers of both Kerases.

They are changed as classes, so that whatever optimizer a script makes, for ``fit`` or for a loop
of its own, does what the job asks:

- Gradients are summed over replicas before anything else is done with them. Keras 3 does this last
  of all: it clips the gradients of each replica apart, and lets each decide for itself whether its
  gradients are finite (float16), so that workers that disagree wait for each other for ever.
- The sums can be over several batches, and travel in a smaller type (`gradients`).
- The learning rate can be scaled while an update is made (`learning_rate`).

A test calls `missing_names` and pins the signatures, so that a release that moves something fails
there and not in a user's job.
"""

from __future__ import annotations

from typing import Any

from timonel.errors import SpecError
from timonel.training.worker.numerics.gradients import Plan
from timonel.training.worker.numerics.learning_rate import Rule
from timonel.training.worker.private import class_patching, optimizers_keras3, optimizers_tf_keras
from timonel.training.worker.private.gradient_sums import innermost


def missing_names() -> list[str]:
    """Return the private names that are needed and that are not there, of both Kerases."""
    return [*optimizers_keras3.missing_names(), *optimizers_tf_keras.missing_names()]


def install(keras: Any, plan: Plan, rule: Rule) -> None:
    """Change the optimizers of ``keras``, once: a second call takes the place of the first."""
    class_patching.restore()
    if keras.__name__ == "keras":
        optimizers_keras3.install(plan, rule)
    else:
        optimizers_tf_keras.install(plan, rule)


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


def require_supported(optimizer: Any) -> None:
    """Check that the job's options reach an optimizer.

    Raises:
        SpecError: They do not.
    """
    if not class_patching.is_changed(innermost(optimizer)):
        raise SpecError(
            "expected an optimizer of Keras for what was asked of gradients and the learning rate, "
            f"got {type(optimizer).__module__}.{type(optimizer).__name__}",
            hint="legacy optimizers are not supported: use those of keras.optimizers",
        )


def _number(value: Any) -> Any:
    return value.numpy() if hasattr(value, "numpy") else value

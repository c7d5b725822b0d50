"""Fix Keras 3's metrics under CentralStorageStrategy.

All replicas share one copy of each variable there, and TensorFlow sums or averages their
assignments. Keras 3 adds to a variable by assigning its value plus the increment, so two replicas
double a metric's total at every step. Metrics were wrong from the second step on, and infinite
after 128.
"""

from __future__ import annotations

import functools
from typing import Any


def missing_names() -> list[str]:
    """Return the required private names that are missing."""
    from keras.src.backend.tensorflow import core  # noqa: PLC0415 - TensorFlow loads here

    wanted = ("assign_add", "_direct_assign", "_convert_to_tensor")
    return [name for name in wanted if not hasattr(core.Variable, name)]


def add_in_place() -> None:
    """Make replicas add only increments to shared variables. Idempotent."""
    from keras.src.backend.tensorflow import core  # noqa: PLC0415 - TensorFlow loads here
    from tensorflow.python.distribute.ps_values import AggregatingVariable  # noqa: PLC0415

    original = core.Variable.assign_add
    if getattr(original, "is_timonels", False):
        return

    @functools.wraps(original)
    def assign_add(variable: Any, value: Any) -> Any:
        if not isinstance(variable.value, AggregatingVariable):
            return original(variable, value)
        variable.value.assign_add(variable._convert_to_tensor(value, dtype=variable.dtype))
        return variable.value

    assign_add.is_timonels = True  # type: ignore[attr-defined] # marks the replacement
    core.Variable.assign_add = assign_add

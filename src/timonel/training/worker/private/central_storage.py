"""The private names that Keras 3 needs replaced under CentralStorageStrategy, and nothing else.

There all replicas share one copy of each variable, and what they assign is added up or averaged.
Keras 3 adds to a variable by assigning its value and something more: two replicas then double what
a metric has counted so far at every step. Metrics were wrong from the second step on, and
infinite after 128.
"""

from __future__ import annotations

import functools
from typing import Any


def missing_names() -> list[str]:
    """Return the private names that are needed and that are not there."""
    from keras.src.backend.tensorflow import core  # noqa: PLC0415 - TensorFlow loads here

    wanted = ("assign_add", "_direct_assign", "_convert_to_tensor")
    return [name for name in wanted if not hasattr(core.Variable, name)]


def add_in_place() -> None:
    """Let replicas that share a variable add to it what is new, and no more. Idempotent."""
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

"""Assign saved values to existing variables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from timonel.errors import TimonelError
from timonel.training.worker.state.checkpoint_format import dtype_named


def restore(variables: Sequence[Any], arrays: Sequence[np.ndarray[Any, Any]]) -> None:
    """Assign saved values to variables.

    Raises:
        TimonelError: The variables differ from the saved ones.
    """
    here = [(tuple(variable.shape), _dtype(variable)) for variable in variables]
    there = [(array.shape, array.dtype) for array in arrays]
    if here != there:
        raise TimonelError(
            "expected the model that was checkpointed before the restart, got one with other "
            f"variables ({len(here)} instead of {len(there)}, or of other shapes)",
            hint="a script must build the same models in the same order each time it is started",
        )
    for variable, array in zip(variables, arrays, strict=True):
        variable.assign(array)


def _dtype(variable: Any) -> np.dtype[Any]:
    dtype = variable.dtype
    return dtype_named(getattr(dtype, "name", dtype))

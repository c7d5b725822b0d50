"""Stand-ins for what Keras has."""

from __future__ import annotations

from typing import Any

import numpy as np


class Variable:
    """As much of a Keras variable as saving and restoring need."""

    def __init__(self, value: Any) -> None:
        self._value = np.asarray(value)

    @property
    def shape(self) -> tuple[int, ...]:
        return self._value.shape

    @property
    def dtype(self) -> str:
        return self._value.dtype.name

    def numpy(self) -> np.ndarray[Any, Any]:
        return self._value

    def assign(self, value: Any) -> None:
        self._value = np.array(value)

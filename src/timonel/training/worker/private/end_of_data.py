"""Observe when workers have their batches, by a private name of TensorFlow.

For datasets that end, workers exchange before each step whether they have a batch, so a worker that
gets its batch late delays the others there. A test pins the name.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

Look = Callable[[list[Any]], object]

NAME = "_calculate_replicas_with_values"


def watch_batches(before: Look, after: Look) -> Callable[[], None]:
    """Observe when this worker and all workers have their batches.

    Args:
        before: Gets tensors that are available once this worker has its batch.
        after: Gets tensors that are available once all workers have reported theirs.

    Returns:
        A function that undoes the change.
    """
    from tensorflow.python.distribute import input_lib  # noqa: PLC0415 - TensorFlow loads here

    original = getattr(input_lib, NAME)

    @functools.wraps(original)
    def counted(strategy: Any, input_workers: Any, optional_list: Any) -> Any:
        before([found.has_value() for optionals in optional_list for found in optionals])
        count = original(strategy, input_workers, optional_list)
        after([count])
        return count

    setattr(input_lib, NAME, counted)
    return lambda: setattr(input_lib, NAME, original)

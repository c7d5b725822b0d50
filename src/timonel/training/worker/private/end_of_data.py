"""The private name of TensorFlow that the measuring of steps leans on, pinned by a test.

Where a dataset has an end, workers tell each other before each step whether they have a batch
still: whoever gets its batch late holds up the others there already.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

Look = Callable[[list[Any]], object]

NAME = "_calculate_replicas_with_values"


def watch_batches(before: Look, after: Look) -> Callable[[], None]:
    """Have a look at what tells that a worker's batch is there, and that all others' are.

    Args:
        before: Gets tensors that are there once this worker has its batch.
        after: Gets tensors that are there once all have told that they have theirs.

    Returns:
        What puts everything back.
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

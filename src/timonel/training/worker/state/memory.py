"""What to say when memory does not do: the batch size that was used, and one to try."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

_OUT_OF_MEMORY = frozenset({"MemoryError", "ResourceExhaustedError"})


def advice(batch_size: int, replicas: int) -> str | None:
    """Return what to say of a batch that was too large; None if there is no smaller one.

    Args:
        batch_size: Its size, of all replicas together.
        replicas: How many they are.
    """
    smaller = batch_size // 2 // replicas * replicas
    if smaller < 1:
        return None
    return f"the batch size was {batch_size}: try {smaller}"


@contextlib.contextmanager
def explained(batch_size: int | None, replicas: int) -> Iterator[None]:
    """Add to an error that says memory does not do what the batch size was.

    Args:
        batch_size: The global batch size, if it is known.
        replicas: How many replicas share a batch.
    """
    try:
        yield
    except Exception as error:
        kinds = {base.__name__ for base in type(error).__mro__}
        said = advice(batch_size, replicas) if batch_size else None
        if said is not None and kinds & _OUT_OF_MEMORY:
            error.add_note(said)
        raise

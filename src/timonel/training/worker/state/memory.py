"""What to say when memory does not do: the batch size that was used, and one to try."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from timonel.engines.base import FailureCause

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
def explained(
    batch_size: int | None, replicas: int, last_words: Path | None = None
) -> Iterator[None]:
    """Add to an error that says memory does not do what the batch size was.

    Who is killed by the kernel raises nothing: so the same lies in a file meanwhile.

    Args:
        batch_size: The global batch size, if it is known.
        replicas: How many replicas share a batch.
        last_words: The file in which the engine looks for a report of who was killed so.
    """
    said = advice(batch_size, replicas) if batch_size else None
    if said is not None and last_words is not None:
        report = {
            "cause": FailureCause.OUT_OF_MEMORY.value,
            "message": f"killed by the kernel for want of memory; {said}",
        }
        with contextlib.suppress(OSError):  # a full disk: then the kernel's kill says less
            last_words.write_text(json.dumps(report) + "\n")
    try:
        yield
    except Exception as error:
        kinds = {base.__name__ for base in type(error).__mro__}
        if said is not None and kinds & _OUT_OF_MEMORY:
            error.add_note(said)
        raise
    finally:
        if last_words is not None:
            last_words.unlink(missing_ok=True)

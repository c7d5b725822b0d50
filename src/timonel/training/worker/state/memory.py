"""Out-of-memory advice: current batch size, and a smaller one."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from timonel.engines.base import FailureCause
from timonel.training.worker.exit_report import is_out_of_memory


def advice(batch_size: int, replicas: int) -> str | None:
    """Return advice for a too large global batch; None if there is no smaller one."""
    smaller = batch_size // 2 // replicas * replicas
    if smaller < 1:
        return None
    return f"the batch size was {batch_size}: try {smaller}"


@contextlib.contextmanager
def explained(
    batch_size: int | None, replicas: int, last_words: Path | None = None
) -> Iterator[None]:
    """Add the batch size to out-of-memory errors."""
    # A process killed by the kernel raises nothing, so the same advice is meanwhile in the file
    # ``last_words``, from which the engine takes the report of a task that ran out of memory.
    said = advice(batch_size, replicas) if batch_size else None
    if said is not None and last_words is not None:
        report = {
            "cause": FailureCause.OUT_OF_MEMORY.value,
            "message": f"killed by the kernel for want of memory; {said}",
        }
        with contextlib.suppress(OSError):  # a full disk: then there is no advice
            last_words.write_text(json.dumps(report) + "\n")
    try:
        yield
    except Exception as error:
        if said is not None and is_out_of_memory(error):
            error.add_note(said)
        raise
    finally:
        if last_words is not None:
            last_words.unlink(missing_ok=True)

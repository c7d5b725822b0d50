"""Errors of ``mpirun timonel train``: what is wrong for all ranks is said by the first of them."""

from __future__ import annotations

import os
import time

from timonel.errors import Interrupted, JobError

_PATIENCE_S = 5.0
_OF_MPIRUN = ("OMPI_", "PMI")


def is_told_by_first(error: BaseException | None) -> bool:
    """Tell whether this is another rank than the first, and that one says what is wrong here.

    A command line or a script that cannot be used is so for every rank. The first one says it and
    ends, and then mpirun ends the others, which wait for that. Whoever is not ended has something
    of its own to say. What is wrong once tasks have run is each rank's own.

    Args:
        error: What is wrong; None for an interruption.
    """
    if not any(name.startswith(_OF_MPIRUN) for name in os.environ):
        return False
    from timonel.training.worker.task.ranks import is_first

    if is_first(os.environ) or isinstance(error, JobError):
        return False
    if error is None or isinstance(error, (Interrupted, KeyboardInterrupt)):
        return True
    try:
        time.sleep(_PATIENCE_S)
    except KeyboardInterrupt:  # what SIGTERM is in a command
        return True
    return False

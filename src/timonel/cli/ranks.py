"""Errors of ``mpirun timonel train``, reported by one rank if common."""

from __future__ import annotations

import os
import time

from timonel.errors import Interrupted, JobError

_PATIENCE_S = 5.0
_OF_MPIRUN = ("OMPI_", "PMI")


def is_told_by_first(error: BaseException | None) -> bool:
    """Tell whether the first rank reports this error for all ranks.

    An invalid command line or script fails on every rank. The first rank reports it and exits, and
    then mpirun kills the others, which wait for that. A rank that is not killed within the wait has
    an error of its own to report. Errors after the tasks have run are always the rank's own.

    Args:
        error: The error; None for an interruption.
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
    except KeyboardInterrupt:  # SIGTERM raises it in a command
        return True
    return False

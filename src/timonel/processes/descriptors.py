"""The limit of open file descriptors."""

from __future__ import annotations

import logging
import resource

_ENOUGH = 2**20
"""More connections than one process can answer; some systems reject an unlimited value."""

logger = logging.getLogger(__name__)


def raise_limit() -> None:
    """Raise this process's limit of open file descriptors to its maximum.

    The usual limit of 1024 is for programs that use ``select``. A server that reaches it cannot
    accept connections, which looks to clients as if it hung.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if soft == resource.RLIM_INFINITY or soft >= target:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
    except (OSError, ValueError) as error:
        logger.warning("cannot raise the limit of %d open files: %s", soft, error)

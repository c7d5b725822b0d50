"""How many files and sockets a server may have open."""

from __future__ import annotations

import logging
import resource

_LOG = logging.getLogger(__name__)
# More connections than one process answers; some systems refuse what has no end.
_ENOUGH = 2**20


def raise_limit() -> None:
    """Allow this process as many descriptors as it may allow itself.

    The usual 1024 is the limit for programs that use ``select``. A server that reaches it can
    accept no connection, which to clients looks as if it hung.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as error:
        _LOG.warning("the limit of %d open files stays as it is: %s", soft, error)

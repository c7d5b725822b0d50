"""Limit of open files and sockets of a server."""

from __future__ import annotations

import logging
import resource

_LOG = logging.getLogger(__name__)
# More connections than one process can answer; some systems reject an unlimited value.
_ENOUGH = 2**20


def raise_limit() -> None:
    """Raise this process's limit of open file descriptors to its maximum.

    The usual limit of 1024 is for programs that use ``select``. A server that reaches it cannot
    accept connections, which looks to clients as if it hung.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as error:
        _LOG.warning("the limit of %d open files stays as it is: %s", soft, error)

"""Close versions, and return their memory to the system."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection

from timonel.serving.manager.catalogue import Servable
from timonel.serving.memory import give_back

_LOG = logging.getLogger(__name__)


def close(servable: Servable) -> None:
    """Close an unused version; log errors."""
    try:
        servable.model.close()
    except Exception:  # noqa: BLE001 - logged
        # The version takes no more requests, even if not fully closed.
        _LOG.exception("model %s: version %d was not closed", servable.name, servable.version)
    give_back()


def close_all(servables: Collection[Servable], closed: Callable[[Servable], None]) -> None:
    """Close versions after their last requests; call ``closed`` for each."""
    idle = threading.Semaphore(0)
    for servable in servables:
        servable.retire(idle.release)
    for servable in servables:
        idle.acquire()
        servable.model.close()
        closed(servable)

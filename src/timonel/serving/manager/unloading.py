"""Closing versions, and giving back the memory that they took."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection

from timonel.serving.manager.catalogue import Servable
from timonel.serving.memory import give_back

_LOG = logging.getLogger(__name__)


def close(servable: Servable) -> None:
    """Close a version that nobody uses; whatever is wrong with that is logged."""
    try:
        servable.model.close()
    except Exception:  # noqa: BLE001 - logged
        # It takes no requests any more, whatever is left of it.
        _LOG.exception("model %s: version %d was not closed", servable.name, servable.version)
    give_back()


def close_all(servables: Collection[Servable], closed: Callable[[Servable], None]) -> None:
    """Close versions once their last requests have left them; ``closed`` is told of each."""
    idle = threading.Semaphore(0)
    for servable in servables:
        servable.retire(idle.release)
    for servable in servables:
        idle.acquire()
        servable.model.close()
        closed(servable)

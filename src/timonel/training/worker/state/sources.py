"""Which feed the training data of a ``fit`` call get."""

from __future__ import annotations

from typing import Any

from timonel.training.worker.loaded import find_loaded
from timonel.training.worker.state.feeds import Feed, StreamFeed


def feed_of(arguments: dict[str, Any]) -> Feed:
    """Return the feed for a call, which may change the call's arguments."""
    loaded = find_loaded(arguments.get("x"))
    if loaded is not None:
        return StreamFeed(loaded.stream, "timonel.data.load goes on at its exact batch")
    return Feed()

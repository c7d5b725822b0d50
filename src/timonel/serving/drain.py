"""Wait for in-flight requests before closing."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection
from concurrent.futures import Future
from typing import Any


def await_settled(futures: Collection[Future[Any]], timeout_s: float | None = None) -> bool:
    """Wait until all futures are done, including those cancelled meanwhile.

    `concurrent.futures.wait` notices a cancelled future only once an executor claims it, which
    never happens after the future has left its queue.

    Args:
        futures: The futures to wait for.
        timeout_s: Maximum time to wait in seconds; None for no limit.

    Returns:
        Whether all were done in time.
    """
    done = threading.Semaphore(0)
    for future in futures:
        future.add_done_callback(lambda _: done.release())
    until = None if timeout_s is None else time.monotonic() + timeout_s
    return all(
        done.acquire(timeout=None if until is None else max(0.0, until - time.monotonic()))
        for _ in futures
    )

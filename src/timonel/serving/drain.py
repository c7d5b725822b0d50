"""Waiting for the last requests of what is about to close."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection
from concurrent.futures import Future
from typing import Any


def await_settled(futures: Collection[Future[Any]], timeout_s: float | None = None) -> bool:
    """Wait until all futures are done, those that are cancelled meanwhile included.

    `concurrent.futures.wait` hears of a cancelled one only when somebody claims it, and nobody
    does once it has left its queue.

    Args:
        futures: What is waited for.
        timeout_s: For how many seconds at most; none for as long as it takes.

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

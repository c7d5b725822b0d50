"""Waiting for what is to come true: until it does, and not for a time."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(
    condition: Callable[[], object],
    timeout_s: float = 180.0,
    *,
    poll_s: float = 0.02,
    seen: Callable[[], object] = lambda: "it did not come to that",
) -> None:
    """Wait until a condition holds.

    Args:
        condition: What is to hold.
        timeout_s: After how long the test has failed; long, as tests share the machine.
        poll_s: The time between two looks.
        seen: What is told if it never held.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, seen()
        time.sleep(poll_s)

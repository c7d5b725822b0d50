"""Requests in flight, and their number averaged over time. Pure: time is an argument, in seconds.

The average over a window is weighted by time, as in Knative's queue-proxy: a request that takes
half of the window counts as a half. Autoscalers compute it over any window of their own from two
readings of `Concurrency.request_s`.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

WINDOW_S = 1.0
"""Length of a reporting window, as in Knative."""
MODEL_CALLS = frozenset(
    {
        "predict", "classify", "regress", "infer",
        "Predict", "Classify", "Regress", "MultiInference", "ModelInfer",
    }
)  # fmt: skip
"""Methods whose requests count: those that run a model."""


class Concurrency(NamedTuple):
    """Concurrency of requests at one moment.

    Args:
        in_flight: Requests that have arrived and are not answered.
        average: Average of that number over the last complete window.
        request_s: Its integral over time since the start of the server, in request-seconds.
    """

    in_flight: int = 0
    average: float = 0.0
    request_s: float = 0.0


class ConcurrencyMeter:
    """Measures concurrency. Thread-safe.

    Args:
        now: The time of the start.
    """

    def __init__(self, now: float) -> None:
        self._lock = threading.Lock()
        self._at = now
        self._in_flight = 0
        self._request_s = 0.0
        self._window_end = now + WINDOW_S
        self._before_window_s = 0.0
        self._average = 0.0

    def begin(self, now: float) -> None:
        """Count a request that has arrived."""
        with self._lock:
            self._advance(now)
            self._in_flight += 1

    def end(self, now: float) -> None:
        """Count a request that is answered."""
        with self._lock:
            self._advance(now)
            self._in_flight -= 1

    def read(self, now: float) -> Concurrency:
        """Return the present values."""
        with self._lock:
            self._advance(now)
            return Concurrency(self._in_flight, self._average, self._request_s)

    def _advance(self, now: float) -> None:
        # Another thread may have read the clock later and come first.
        now = max(now, self._at)
        if now >= self._window_end:
            complete_s = self._integral(self._window_end)
            self._average = (complete_s - self._before_window_s) / WINDOW_S
            whole = (now - self._window_end) // WINDOW_S
            if whole:
                self._average = float(self._in_flight)
            start = self._window_end + whole * WINDOW_S
            self._before_window_s = self._integral(start)
            self._window_end = start + WINDOW_S
        self._request_s = self._integral(now)
        self._at = now

    def _integral(self, now: float) -> float:
        return self._request_s + self._in_flight * (now - self._at)

"""Backoff before a crashed process is restarted. Pure.

Restarts are unlimited: with a limit, five bad requests could take a model out of service for good.
"""

from __future__ import annotations

from dataclasses import dataclass

FIRST_DELAY_S = 0.5
MAX_DELAY_S = 10.0
WINDOW_S = 300.0
"""Time after which a crash no longer counts."""


@dataclass(frozen=True)
class Restart:
    """Backoff and crash history after a crash.

    Args:
        crashes: Times of the crashes that count, including this one, ascending.
        delay_s: Seconds to wait before the restart.
    """

    crashes: tuple[float, ...]
    delay_s: float


def after_crash(crashes: tuple[float, ...], now: float) -> Restart:
    """Return the delay before the next restart.

    It is 0 s after the first crash, then 0.5 s, doubled up to `MAX_DELAY_S`.

    Args:
        crashes: Times of the previous crashes, ascending.
        now: The time of this crash, on the same clock.
    """
    recent = (*(at for at in crashes if now - at < WINDOW_S), now)
    if len(recent) == 1:
        return Restart(recent, 0.0)
    return Restart(recent, min(MAX_DELAY_S, FIRST_DELAY_S * 2.0 ** min(len(recent) - 2, 30)))

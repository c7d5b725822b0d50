"""When a process that died is started again, and when not any more. Pure."""

from __future__ import annotations

from dataclasses import dataclass

_FIRST_DELAY_S = 0.5
_MAX_DELAY_S = 30.0


@dataclass(frozen=True)
class Patience:
    """How many deaths are borne.

    Args:
        max_deaths: The one with this number within the window is the last.
        window_s: Seconds after which a death is forgotten.
    """

    max_deaths: int
    window_s: float


@dataclass(frozen=True)
class Decision:
    """What to do after a death.

    Args:
        deaths: When it died: all that are not forgotten, this one included.
        delay_s: Seconds until it is started again; none for never.
    """

    deaths: tuple[float, ...]
    delay_s: float | None


def after_death(patience: Patience, deaths: tuple[float, ...], now: float) -> Decision:
    """Decide: at once after the first death, then later and later, then never.

    Args:
        patience: How many deaths are borne.
        deaths: When it died before, ascending.
        now: When it has died now.
    """
    recent = (*(at for at in deaths if now - at < patience.window_s), now)
    if len(recent) >= patience.max_deaths:
        return Decision(recent, None)
    if len(recent) == 1:
        return Decision(recent, 0.0)
    return Decision(recent, min(_MAX_DELAY_S, _FIRST_DELAY_S * 2.0 ** (len(recent) - 2)))

"""Request rates: ``100``, ``100/s``, ``600/min``, ``100/s:20``."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from timonel.errors import SpecError

_RATE = re.compile(r"(\d+(?:\.\d+)?)(?:/(s|min|h))?(?::(\d+))?\Z")
_UNITS_S = {None: 1, "s": 1, "min": 60, "h": 3600}


@dataclass(frozen=True)
class Rate:
    """Requests a second on average, and how many may come at once."""

    per_s: float
    burst: int

    def __str__(self) -> str:
        return f"{self.per_s:g}/s:{self.burst}"


def parse_rate(text: str) -> Rate:
    """Return the rate that ``text`` names: ``100``, ``100/s``, ``600/min``, ``100/s:20``.

    Without a number after the colon, a second's worth may come at once.

    Raises:
        SpecError: It is none.
    """
    found = _RATE.match(text.strip())
    per_s = float(found[1]) / _UNITS_S[found[2]] if found else 0.0
    burst = int(found[3]) if found and found[3] else math.ceil(per_s)
    if per_s <= 0 or burst < 1:
        raise SpecError(f"expected a rate such as 100/s, 600/min or 100/s:20, got {text!r}")
    return Rate(per_s, burst)

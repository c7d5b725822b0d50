"""Request rates such as ``100``, ``100/s``, ``600/min`` or ``100/s:20``."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from timonel.errors import SpecError

_RATE = re.compile(r"(\d+(?:\.\d+)?)(?:/(s|min|h))?(?::(\d+))?\Z")
_UNITS_S = {None: 1, "s": 1, "min": 60, "h": 3600}


@dataclass(frozen=True)
class Rate:
    """Average requests per second, and the allowed burst."""

    per_s: float
    burst: int

    def __str__(self) -> str:
        return f"{self.per_s:g}/s:{self.burst}"


def parse_rate(text: str) -> Rate:
    """Parse a rate such as ``100``, ``100/s``, ``600/min`` or ``100/s:20``.

    Without a number after the colon, the burst is one second's worth of requests.

    Raises:
        SpecError: The text is not a rate.
    """
    found = _RATE.match(text.strip())
    per_s = float(found[1]) / _UNITS_S[found[2]] if found else 0.0
    burst = int(found[3]) if found and found[3] else math.ceil(per_s)
    if per_s <= 0 or burst < 1:
        raise SpecError(f"expected a rate such as 100/s, 600/min or 100/s:20, got {text!r}")
    return Rate(per_s, burst)

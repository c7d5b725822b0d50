"""Traces of load: CSV files and built-in patterns."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from timonel.errors import DataError, NotFoundError, did_you_mean

Levels = npt.NDArray[np.float64]
DAY_S = 86400
MAX_S = 31 * DAY_S
_MAX_LOAD = 1e12


@dataclass(frozen=True, eq=False)
class Trace:
    """Load in each second.

    Args:
        levels: Average load of each second, float64 [seconds].
        unit: ``rps`` are requests that arrive per second, whether or not earlier ones have been
            answered. ``concurrency`` is a number of clients, each of which waits for an answer
            before sending its next request.
    """

    levels: Levels
    unit: Literal["rps", "concurrency"]


def load_trace(trace: str) -> Trace:
    """Read a trace from a CSV file, or return a built-in one.

    Args:
        trace: A file, or one of `TRACES`.
    """
    path = Path(trace)
    if trace in TRACES and not path.exists():
        return TRACES[trace]()
    try:
        text = path.read_text("utf-8-sig")
    except FileNotFoundError:
        hint = did_you_mean(trace, TRACES) or f"name a CSV file, or one of {', '.join(TRACES)}"
        raise NotFoundError(f"the trace {trace} does not exist", hint=hint) from None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read the trace {trace}: {error}") from error
    return parse_trace(text)


def parse_trace(text: str) -> Trace:
    """Parse CSV with the columns ``time`` and ``rps`` or ``concurrency``.

    Times are seconds, or ISO 8601. Each row applies until the next one, the last row as long as the
    previous one.
    """
    reader = csv.DictReader(io.StringIO(text), skipinitialspace=True)
    names = reader.fieldnames or []
    column: Literal["rps", "concurrency"] = "rps" if "rps" in names else "concurrency"
    if "time" not in names or column not in names:
        raise DataError(
            f"the trace has the columns {', '.join(names) or 'of an empty file'}",
            hint="name them 'time' and 'rps' or 'concurrency' in the first line",
        )
    times: list[float] = []
    loads: list[float] = []
    for row in reader:
        at, load = _time(row["time"], reader.line_num), _number(row[column], reader.line_num)
        if times and at <= times[-1]:
            raise DataError(f"line {reader.line_num}: the time does not increase", hint="sort them")
        if not 0 <= load <= _MAX_LOAD:
            raise DataError(
                f"line {reader.line_num}: expected {column} from 0 to {_MAX_LOAD:g}, got {load:g}"
            )
        times.append(at)
        loads.append(load)
    if len(times) < 2:
        raise DataError("the trace has fewer than two rows", hint="add rows")
    return Trace(_resampled(np.array(times), np.array(loads)), column)


def _resampled(times: Levels, loads: Levels) -> Levels:
    """Return the average of a step function in each second."""
    ends = np.append(times - times[0], 2 * times[-1] - times[-2] - times[0])
    if ends[-1] > MAX_S:
        raise DataError(
            f"the trace is {ends[-1] / DAY_S:.4g} days long, more than 31", hint="cut it in parts"
        )
    total = np.concatenate([[0.0], np.cumsum(loads * np.diff(ends))])
    seconds = np.arange(max(1, math.ceil(ends[-1])) + 1)
    averages: Levels = np.diff(np.interp(seconds, ends, total))
    return averages


def _time(text: str | None, line: int) -> float:
    try:
        return _number(text, line)
    except DataError:
        pass
    try:
        return datetime.fromisoformat(text or "").timestamp()
    except ValueError:
        raise DataError(
            f"line {line}: {text!r} is not a time", hint="use seconds or ISO 8601"
        ) from None


def _number(text: str | None, line: int) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise DataError(f"line {line}: {text!r} is no finite number")
    return value


def step(low: float = 1.0, high: float = 50.0, at_s: int = 300, seconds: int = 1800) -> Trace:
    """Return a trace whose number of clients rises once."""
    return Trace(np.where(np.arange(seconds) < at_s, low, high), "concurrency")


def spike(low: float = 1.0, high: float = 50.0, at_s: int = 300, for_s: int = 120) -> Trace:
    """Return a trace of half an hour with a short spike of clients."""
    second = np.arange(1800)
    is_high = (second >= at_s) & (second < at_s + for_s)
    return Trace(np.where(is_high, high, low), "concurrency")


def diurnal(high: float = 500.0, days: int = 3, base: float = 0.02) -> Trace:
    """Return a trace of days with quiet nights and steep office hours.

    Args:
        high: Largest number of requests per second.
        base: Load at night, as a fraction of ``high``.
    """
    level = np.interp(
        np.arange(DAY_S) / 3600,
        [0, 6, 7.98, 8, 10, 12, 12.02, 13, 13.02, 17, 17.02, 20, 22, 24],
        [0, 0, 0.1, 0.6, 1, 1, 0.6, 0.6, 0.95, 0.9, 0.4, 0.35, 0.1, 0],
    )
    return Trace(np.tile(high * (base + (1 - base) * level), days), "rps")


def on_off(high: float = 50.0, on_s: int = 600, off_s: int = 1200, repeats: int = 24) -> Trace:
    """Return a trace that alternates between requests and none."""
    return Trace(np.tile(np.concatenate([np.full(on_s, high), np.zeros(off_s)]), repeats), "rps")


TRACES: Mapping[str, Callable[[], Trace]] = {
    "step": step,
    "spike": spike,
    "diurnal": diurnal,
    "on-off": on_off,
}
"""Built-in traces."""

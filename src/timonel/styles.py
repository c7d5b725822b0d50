"""Display styles of states and numbers in terminals, notebooks and pipes."""

from __future__ import annotations

from pathlib import Path

STATUS_STYLES = {
    "running": "cyan",
    "starting": "cyan",
    "pending": "cyan",
    "restarting": "yellow",
    "stopping": "yellow",
    "succeeded": "green",
    "available": "green",
    "ready": "green",
    "idle": "cyan",
    "unready": "yellow",
    "down": "red",
    "failed": "red",
    "lost": "red",
    "stopped": "yellow",
    "interrupted": "yellow",
    "unfinished": "yellow",
    "unreachable": "red",
    "not listening": "red",
    "stale": "red",
    "unreadable": "red",
}


def number(value: float) -> str:
    """Format a number with four significant digits: ``0.9667``, ``152.1``, ``3.2e-05``."""
    return f"{value:.4g}"


def plain(value: float) -> str:
    """Format a number as `number` does, but large ones without an exponent: ``22,710``."""
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e15 else number(value)


def from_here(place: str | Path) -> str:
    """Return a path relative to the current directory if below it."""
    path, here = Path(place), Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)

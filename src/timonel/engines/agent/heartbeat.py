"""Detect hung tasks from their heartbeat and progress files.

A thread of the task touches ``alive`` once a second, which shows that the process runs; the
training loop writes its step to ``progress``. Changes are timed by the watcher's own clock, so that
neither clock changes nor a suspended machine cause false alarms. A process that uses CPU counts as
alive without a heartbeat: a library may hold Python's lock for long.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ALIVE = "alive"
PROGRESS = "progress"
RESTING = "resting"
"""Last word of ``progress`` while a task does work without steps."""
CHECK_S = 1.0
_CHECKS_PER_TIMEOUT = 4
_LATE_CHECKS = 3
_BUSY_SHARE = 0.25
"""CPU share from which a process counts as computing; threads that only wait use less."""
_PROGRESS_LIMIT = 4096


@dataclass(frozen=True)
class _Value:
    value: object
    since: float


@dataclass
class Heartbeat:
    """Tracks the last sign of life of a task.

    All times are those of a monotonic clock.

    Args:
        hang_timeout_s: Maximum seconds without a heartbeat; None: unlimited.
        stall_timeout_s: Maximum seconds without a step; None: unlimited.
    """

    hang_timeout_s: float | None = None
    stall_timeout_s: float | None = None
    _beat: _Value | None = None
    _step: _Value | None = None
    _checked_at: float | None = None
    _cpu_s: float = 0.0

    @property
    def interval_s(self) -> float | None:
        """Interval between checks in seconds; None if there is no timeout."""
        timeouts = [t for t in (self.hang_timeout_s, self.stall_timeout_s) if t is not None]
        return min((CHECK_S, *(t / _CHECKS_PER_TIMEOUT for t in timeouts))) if timeouts else None

    def observe(
        self, now: float, beat: int | None, progress: str | None, cpu_s: float = 0.0
    ) -> str | None:
        """Record an observation, and return why the task is hung, or None.

        Args:
            beat: Value that changes with each heartbeat; None without one.
            progress: Progress text of the task; None without one.
            cpu_s: CPU time used by the task's process so far, in seconds.
        """
        is_busy = self._is_busy(now, cpu_s)
        self._excuse_late_check(now)
        self._beat = _Value(beat, now) if is_busy and beat else _track(self._beat, beat, now)
        self._step = _track(self._step, _steps(progress), now)
        if self.hang_timeout_s is not None and self.silent_s(now) > self.hang_timeout_s:
            return f"no sign of life for {self.silent_s(now):.1f} s"
        if self._step is not None and self.stall_timeout_s is not None:
            idle_s = now - self._step.since
            if idle_s > self.stall_timeout_s:
                return f"no step for {idle_s:.1f} s, the last was {self._step.value}"
        return None

    def silent_s(self, now: float) -> float:
        """Return the seconds since the last sign of life.

        0 before the first.
        """
        return 0.0 if self._beat is None else now - self._beat.since

    def _is_busy(self, now: float, cpu_s: float) -> bool:
        took_s, self._cpu_s = cpu_s - self._cpu_s, cpu_s
        if self._checked_at is None or now <= self._checked_at:
            return False
        return took_s / (now - self._checked_at) >= _BUSY_SHARE

    def _excuse_late_check(self, now: float) -> None:
        # The watcher or the machine was paused.
        before, self._checked_at = self._checked_at, now
        every_s = self.interval_s
        if before is None or every_s is None or now - before <= _LATE_CHECKS * every_s:
            return
        late_s = now - before - every_s
        self._beat = _later(self._beat, late_s)
        self._step = _later(self._step, late_s)


def read_beat(folder: Path) -> int | None:
    """Return a value that changes with each heartbeat, or None."""
    try:
        return (folder / ALIVE).stat().st_mtime_ns
    except OSError:
        return None


def read_progress(folder: Path) -> str | None:
    """Return the progress text of a task; None without one."""
    try:
        with (folder / PROGRESS).open("rb") as file:
            return file.read(_PROGRESS_LIMIT).decode(errors="replace")
    except OSError:
        return None


def steps_of(progress: str | None) -> float | None:
    """Return the number in a progress text; None without one."""
    try:
        return float((progress or "").split(maxsplit=1)[0])
    except (ValueError, IndexError):
        return None


def _steps(progress: str | None) -> str | None:
    words = (progress or "").split()
    return " ".join(words) if words and words[-1] != RESTING else None


def _track(before: _Value | None, value: object, now: float) -> _Value | None:
    if value is None:
        return None
    return before if before is not None and before.value == value else _Value(value, now)


def _later(seen: _Value | None, late_s: float) -> _Value | None:
    return None if seen is None else _Value(seen.value, seen.since + late_s)

"""Whether a task lives and gets on, from the files in which it says so.

A thread of the task touches ``alive`` once a second, which shows that the process as a whole gets
on; the training loop writes its step into ``progress``. What counts is that either changes, by the
watcher's own clock: neither the time of day nor a machine that slept takes anybody for hung. Who
computes is alive without a beat: a library may hold Python's lock for long.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ALIVE = "alive"
PROGRESS = "progress"
RESTING = "resting"
"""The last word of ``progress`` while a task does something that has no steps."""
LOOK_S = 1.0
_LOOKS_PER_TIMEOUT = 4
_LATE_LOOKS = 3
_BUSY_SHARE = 0.25
"""Of one processor, from which on a process computes; threads that only wait use less."""
_PROGRESS_LIMIT = 4096


@dataclass(frozen=True)
class _Seen:
    value: object
    since: float


@dataclass
class Pulse:
    """Remembers when a task last gave a sign; times are those of a steady clock.

    Args:
        hang_timeout_s: How long it may leave its heartbeat alone; None: it is not watched.
        stall_timeout_s: How long it may make no step; None: it is not watched.
    """

    hang_timeout_s: float | None = None
    stall_timeout_s: float | None = None
    _beat: _Seen | None = None
    _step: _Seen | None = None
    _looked_at: float | None = None
    _cpu_s: float = 0.0

    @property
    def look_every_s(self) -> float | None:
        """How often to look; None if nothing is watched."""
        timeouts = [t for t in (self.hang_timeout_s, self.stall_timeout_s) if t is not None]
        return min((LOOK_S, *(t / _LOOKS_PER_TIMEOUT for t in timeouts))) if timeouts else None

    def observe(
        self, now: float, beat: int | None, progress: str | None, cpu_s: float = 0.0
    ) -> str | None:
        """Take in what the files say, and return why the task is hung if it is.

        Args:
            now: The time.
            beat: What changes with each heartbeat; None without one.
            progress: What the task says of its progress; None without a word.
            cpu_s: The processor time that the task's process has had so far.
        """
        is_busy = self._is_busy(now, cpu_s)
        self._forgive_a_late_look(now)
        self._beat = _Seen(beat, now) if is_busy and beat else _seen(self._beat, beat, now)
        self._step = _seen(self._step, _steps(progress), now)
        if self.hang_timeout_s is not None and self.silent_s(now) > self.hang_timeout_s:
            return f"no sign of life for {self.silent_s(now):.1f} s"
        if self._step is not None and self.stall_timeout_s is not None:
            idle_s = now - self._step.since
            if idle_s > self.stall_timeout_s:
                return f"no step for {idle_s:.1f} s, the last was {self._step.value}"
        return None

    def silent_s(self, now: float) -> float:
        """Return how long the task has given no sign of life; 0 where it never gave one."""
        return 0.0 if self._beat is None else now - self._beat.since

    def _is_busy(self, now: float, cpu_s: float) -> bool:
        took_s, self._cpu_s = cpu_s - self._cpu_s, cpu_s
        if self._looked_at is None or now <= self._looked_at:
            return False
        return took_s / (now - self._looked_at) >= _BUSY_SHARE

    def _forgive_a_late_look(self, now: float) -> None:
        """Whoever looks late was held up itself, perhaps with the whole machine."""
        before, self._looked_at = self._looked_at, now
        every_s = self.look_every_s
        if before is None or every_s is None or now - before <= _LATE_LOOKS * every_s:
            return
        late_s = now - before - every_s
        self._beat = _later(self._beat, late_s)
        self._step = _later(self._step, late_s)


def read_beat(folder: Path) -> int | None:
    """Return what changes with each heartbeat of the task whose folder this is."""
    try:
        return (folder / ALIVE).stat().st_mtime_ns
    except OSError:
        return None


def read_progress(folder: Path) -> str | None:
    """Return what the task whose folder this is says of its progress."""
    try:
        with (folder / PROGRESS).open("rb") as file:
            return file.read(_PROGRESS_LIMIT).decode(errors="replace")
    except OSError:
        return None


def steps_of(progress: str | None) -> float | None:
    """Return the number in what a task says of its progress."""
    try:
        return float((progress or "").split(maxsplit=1)[0])
    except (ValueError, IndexError):
        return None


def _steps(progress: str | None) -> str | None:
    words = (progress or "").split()
    return " ".join(words) if words and words[-1] != RESTING else None


def _seen(before: _Seen | None, value: object, now: float) -> _Seen | None:
    if value is None:
        return None
    return before if before is not None and before.value == value else _Seen(value, now)


def _later(seen: _Seen | None, late_s: float) -> _Seen | None:
    return None if seen is None else _Seen(seen.value, seen.since + late_s)

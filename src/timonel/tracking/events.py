"""Events of a run: one JSON object per line.

Any process of the run may append events.

Readers never fail on a line: blank lines are ignored, torn and corrupt ones are skipped and
counted. Numbers that JSON lacks (NaN, infinity) are written as strings and read back as numbers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from timonel.storage.atomic import append_line, escape_surrogates
from timonel.storage.workspace import Workspace

FILE_NAME = "events.jsonl"
FINISH = "finish"
RESUME = "resume"
"""Event type that cancels an earlier finish: the run continues with the same ID, on ``host``."""
SUMMARIES = "summaries"
"""Event type that names a ``folder`` of TensorBoard event files."""

Event = dict[str, Any]


def append_event(path: Path, event: Mapping[str, Any], *, durable: bool = False) -> None:
    """Append an event to the file at ``path``."""
    append_line(path, encode_event(event), durable=durable)


def is_over(events: Iterable[Event], before: bool = False) -> bool:
    """Return whether a run is finished after these events.

    Args:
        events: Events in order.
    """
    for event in events:
        if event["type"] in {FINISH, RESUME}:
            before = event["type"] == FINISH
    return before


def encode_event(event: Mapping[str, Any]) -> str:
    """Encode an event as one line of text."""
    return encode_json(event).decode()


def encode_json(value: object, option: int = 0) -> bytes:
    """Encode a value as JSON; numpy arrays become lists, unknown types text.

    Lone surrogates, as in a file name that is not UTF-8, are replaced by escapes in their text.

    Args:
        option: orjson's options.
    """
    option |= orjson.OPT_SERIALIZE_NUMPY
    try:
        return orjson.dumps(value, default=str, option=option)
    except TypeError:
        return orjson.dumps(_escaped(value), default=_escaped_text, option=option)


def _escaped(value: object) -> object:
    """Return the value without lone surrogates."""
    if isinstance(value, str):
        return _escaped_text(value)
    if isinstance(value, Mapping):
        return {_escaped(key): _escaped(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_escaped(each) for each in value]
    return value


def _escaped_text(value: object) -> str:
    return escape_surrogates(str(value))


def encode_number(value: float) -> float | str:
    """Encode a metric's value for JSON."""
    number = float(value)
    return number if math.isfinite(number) else str(number)


def decode_number(value: object) -> float | None:
    """Decode a metric's value; None if it is not a number."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except ValueError:
        return None


@dataclass
class EventReader:
    """Incremental reader of a growing event file.

    Not safe for use by several threads.

    Attributes:
        path: The file; it need not exist yet.
        offset: The byte offset of the next read: always the start of a line.
        skipped: The number of unusable lines.
    """

    path: Path
    offset: int = 0
    skipped: int = field(default=0, init=False)

    def read(self, limit_bytes: int = 1 << 24) -> list[Event]:
        """Return the events of the complete lines appended since the last call.

        Args:
            limit_bytes: Approximate bytes to read at once; a longer line is still read completely.
        """
        try:
            with self.path.open("rb") as file:
                file.seek(self.offset)
                lines = file.readlines(limit_bytes)
        except (FileNotFoundError, NotADirectoryError):
            return []
        if lines and not lines[-1].endswith(b"\n"):
            lines.pop()  # being written, or torn: the next append terminates it
        self.offset += sum(len(line) for line in lines)
        return [event for line in lines if (event := self._parse(line)) is not None]

    @property
    def has_torn_end(self) -> bool:
        """Whether the file ends in an incomplete line."""
        try:
            return self.path.stat().st_size > self.offset
        except OSError:
            return False

    def _parse(self, line: bytes) -> Event | None:
        if not line.strip():
            return None
        try:
            event = orjson.loads(line)
        except orjson.JSONDecodeError:
            event = None
        if _is_event(event):
            return event  # type: ignore[no-any-return] # checked by _is_event
        self.skipped += 1
        return None


def read_events(path: Path) -> tuple[list[Event], int]:
    """Return all events of a file, and the number of unusable lines."""
    reader = EventReader(path)
    events: list[Event] = []
    before = -1
    while reader.offset != before:
        before = reader.offset
        events += reader.read()
    return events, reader.skipped + reader.has_torn_end


def follow_events(
    workspace: Workspace,
    run_id: str,
    *,
    stop: Callable[[], bool],
    poll_s: float = 0.2,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Event]:
    """Yield a run's existing events, then new ones as they arrive.

    Ends after the run's end, or once ``stop()`` is true and no new events are available.

    Args:
        workspace: The workspace of the run; the run's folder need not exist yet.
        run_id: The run.
        stop: Called before each read; once true, the next empty read ends the iteration.
        poll_s: Delay between reads.
        sleep: Sleep function, replaceable in tests.
    """
    reader = EventReader(workspace.runs / run_id / FILE_NAME)
    while True:
        stopping = stop()
        batch = reader.read()
        for number, event in enumerate(batch):
            yield event
            if event["type"] == FINISH and not _is_resumed(batch[number:]):
                return
        if not batch:
            if stopping:
                return
            sleep(poll_s)


def _is_resumed(events: Iterable[Event]) -> bool:
    return any(event["type"] == RESUME for event in events)


def _is_event(value: object) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("type"), str)
        and isinstance(value.get("t"), int | float)
    )

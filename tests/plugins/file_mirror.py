"""A mirror that costs no import of a tracker: it writes the events that it was given."""

from __future__ import annotations

from collections.abc import Sequence

from timonel.tracking.events import Event
from timonel.tracking.mirrors.base import Mirror
from timonel.tracking.records import RunRecord


class FileMirror(Mirror):
    name = "file"

    @classmethod
    def is_available(cls) -> bool:
        return True

    def begin(self, run: RunRecord) -> bool:
        self._file = self.workspace.root / f"{run.id}.mirrored"
        return self._file.exists()

    def events(self, batch: Sequence[Event]) -> None:
        with self._file.open("a") as file:
            file.writelines(f"{event['type']}\n" for event in batch)

    def end(self) -> None:
        """Nothing is left to write."""

"""Log lines and terminal output that names from elsewhere cannot forge or colour."""

from __future__ import annotations

import logging
import re
from typing import IO

UNPRINTABLE = re.compile(
    # C0 and C1 controls except tab and line feed, direction overrides, lone surrogates
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str) -> str:
    """Escape characters that control a terminal, except tabs and line feeds."""
    return UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def configure_logging(
    level: int = logging.INFO,
    format_: str = "%(asctime)s %(message)s",
    stream: IO[str] | None = None,
) -> None:
    """Log to a stream, by default standard error, unless logging is configured already."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_Formatter(format_))
    logging.basicConfig(level=level, handlers=[handler])


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        # Indented, so that a line within a name does not look like a record.
        return printable(super().format(record)).replace("\n", "\n  ")

"""The server process: ``python -m timonel.serving``, started by `timonel.serve`.

The parent sends the settings as one line of JSON on stdin. The server reports once, as one line of
JSON on a file descriptor named there: that it is ready, or why it failed to start. Unless detached,
it stops when its stdin is closed.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from typing import Any

from timonel.errors import TimonelError
from timonel.serving.server import configure_logging, run
from timonel.serving.server_records import ServerRecord, as_body
from timonel.serving.settings import ServerSettings

_STDIN = 0


def main() -> int:
    """Run the server with the settings from stdin; return the exit code."""
    orders = json.loads(_read_line(_STDIN))
    configure_logging()
    settings = ServerSettings.model_validate(orders["settings"])
    report: int = orders["report"]

    def on_ready(record: ServerRecord) -> None:
        _report(report, {"ready": as_body(record)})

    leash = None if orders["detach"] else _STDIN
    try:
        run(settings, on_ready=on_ready, leash=leash, log=orders["log"])
    except TimonelError as error:
        _report(report, {"error": error.message, "hint": error.hint})
        logging.getLogger(__name__).error("%s", error)  # noqa: TRY400 - the user's error, not ours
        return error.exit_code
    return 0


def _read_line(descriptor: int) -> bytes:
    # Not sys.stdin: its buffer would swallow input that the event loop waits for.
    line = bytearray()
    while (byte := os.read(descriptor, 1)) not in {b"", b"\n"}:
        line += byte
    return bytes(line)


def _report(descriptor: int, content: dict[str, Any]) -> None:
    try:
        os.write(descriptor, json.dumps(content).encode() + b"\n")
        os.close(descriptor)
    except OSError:
        # Reported already, or the reader is gone.
        logging.getLogger(__name__).debug("nobody listens for the report")


if __name__ == "__main__":
    sys.exit(main())

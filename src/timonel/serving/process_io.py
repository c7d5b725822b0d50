"""Orders, report and log of the processes of a server.

The starting process sends orders as a line of JSON on stdin. The process reports once, as a line of
JSON on a file descriptor: that the server is ready, or why it cannot start.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from timonel import logs
from timonel.errors import TimonelError

if TYPE_CHECKING:
    from timonel.serving.server_records import ServerRecord

STDIN = 0
STOP_MARGIN_S = 4.0
"""Seconds beyond the drain time after which a server that is to stop is ended by force."""


def read_line() -> bytes:
    """Read a line from stdin, and nothing more: the rest is left to an event loop."""
    line = bytearray()
    while (byte := os.read(STDIN, 1)) not in {b"", b"\n"}:
        line += byte
    return bytes(line)


def run_reporting(descriptor: int, run: Callable[..., None]) -> int:
    """Run a server, and report on the descriptor; return the exit code.

    Args:
        run: Runs the server; calls its argument ``on_ready`` with the server's record.
    """
    configure_logging()

    def on_ready(record: ServerRecord) -> None:
        _report(descriptor, {"ready": asdict(record)})

    try:
        run(on_ready=on_ready)
    except TimonelError as error:
        _report(descriptor, {"error": error.message, "hint": error.hint})
        logging.getLogger(__name__).error("%s", error)  # noqa: TRY400 - the user's error, not ours
        return error.exit_code
    return 0


def _report(descriptor: int, content: dict[str, Any]) -> None:
    """Write a line of JSON, once; later reports and those that nobody reads are dropped."""
    try:
        os.write(descriptor, json.dumps(content).encode() + b"\n")
        os.close(descriptor)
    except OSError:
        logging.getLogger(__name__).debug("nobody listens for the report")


def configure_logging() -> None:
    """Log to standard error."""
    logs.configure_logging(format_="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # At this level, grpc.aio and uvicorn log what this server logs itself.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    # TensorFlow warns about the API that this server calls, not about the model.
    logging.getLogger("tensorflow").setLevel(logging.ERROR)

"""The documents of running servers: ``servers/<pid>.json`` in the workspace.

A document whose process is gone, or whose process number now belongs to another process, is
stale: it is removed by whoever reads it.
"""

from __future__ import annotations

import contextlib
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import psutil

from timonel.errors import CorruptError, FormatError, NotFoundError
from timonel.storage import read_document, write_document

_KIND = "server"
# A process's start is known to a hundredth of a second; its text form loses nothing of it.
_START_TOLERANCE_S = 0.05


@dataclass(frozen=True)
class ServerRecord:
    """A running server.

    Args:
        pid: Its process.
        process_started: When the process started, in seconds since the epoch.
        models: The names it serves.
        rest_url: Where REST is answered, such as ``http://127.0.0.1:8501``; empty if it is not.
        grpc_address: Where gRPC is answered; none if it is turned off.
        started: When the ports were opened, in seconds since the epoch.
        log: The file its output goes to, if it is a file.
    """

    pid: int
    process_started: float
    models: tuple[str, ...]
    rest_url: str
    grpc_address: str | None
    started: float
    log: str | None = None

    @property
    def is_alive(self) -> bool:
        """Whether the process that wrote this still runs."""
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.process_started) < _START_TOLERANCE_S
            return same and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False


def write_record(folder: Path, record: ServerRecord) -> Path:
    """Write a server's document and return its path."""
    path = _path(folder, record.pid)
    write_document(path, _KIND, as_body(record))
    return path


def remove_record(folder: Path, pid: int) -> None:
    """Remove a server's document if it is there."""
    _path(folder, pid).unlink(missing_ok=True)


def running_servers(folder: Path) -> list[ServerRecord]:
    """Return the servers that run, newest first; remove the documents of those that do not."""
    alive = []
    for path in folder.glob("*.json"):
        try:
            record = parse_record(read_document(path, _KIND))
        except (NotFoundError, CorruptError, FormatError):
            # Removed since, or not for this release to read.
            continue
        if record.is_alive:
            alive.append(record)
        else:
            with contextlib.suppress(OSError):
                path.unlink()
    return sorted(alive, key=lambda record: record.started, reverse=True)


def find_server(folder: Path, model: str) -> ServerRecord | None:
    """Return the newest running server that serves ``model``."""
    return next((record for record in running_servers(folder) if model in record.models), None)


def as_body(record: ServerRecord) -> dict[str, Any]:
    """Return a record in JSON's types."""
    return {**asdict(record), "models": list(record.models)}


def parse_record(body: dict[str, Any]) -> ServerRecord:
    """Return a document's body as a record.

    Raises:
        CorruptError: Something is missing.
    """
    known = {field.name for field in fields(ServerRecord)}
    try:
        record = ServerRecord(**{key: value for key, value in body.items() if key in known})
    except TypeError as error:
        raise CorruptError(f"expected a server document, got {sorted(body)}") from error
    return ServerRecord(**{**asdict(record), "models": tuple(record.models)})


def _path(folder: Path, pid: int) -> Path:
    return folder / f"{pid}.json"

"""Records of running servers: ``servers/<pid>.json`` in the workspace.

A record is stale if its process is gone or its PID now belongs to another process. Readers remove
stale records.
"""

from __future__ import annotations

import contextlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
from pydantic import TypeAdapter, ValidationError

from timonel.errors import CorruptError, FormatError, NotFoundError
from timonel.processes.ports import UNIX
from timonel.storage import read_document, write_document

_KIND = "server"
# Process start times have a resolution of 0.01 s; the text form is lossless.
_START_TOLERANCE_S = 0.05


@dataclass(frozen=True)
class ServerRecord:
    """Record of a running server.

    Args:
        pid: The server's process ID.
        process_started: Start time of the process, in seconds since the epoch.
        models: Names of the served models.
        rest_url: Base URL of the REST API, such as ``http://127.0.0.1:8501``; empty if REST is off.
        grpc_address: Address of the gRPC API; None if gRPC is off.
        started: Time when the ports were opened, in seconds since the epoch.
        log: The log file, if the output goes to a file.
        replica: Name of the replica of an endpoint that the server is, if any.
        idle: Those of ``models`` that had no version to serve when the server started.
    """

    pid: int
    process_started: float
    models: tuple[str, ...]
    rest_url: str
    grpc_address: str | None
    started: float
    log: str | None = None
    replica: str | None = None
    idle: tuple[str, ...] = ()

    @property
    def is_alive(self) -> bool:
        """Whether the recorded process is still running."""
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.process_started) < _START_TOLERANCE_S
            return same and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False


_ADAPTER = TypeAdapter(ServerRecord)


def write_record(folder: Path, record: ServerRecord) -> Path:
    """Write a server's record and return its path."""
    path = _path(folder, record.pid)
    write_document(path, _KIND, asdict(record))
    return path


def remove_record(folder: Path, pid: int) -> None:
    """Remove a server's record if it exists."""
    _path(folder, pid).unlink(missing_ok=True)


def running_servers(folder: Path) -> list[ServerRecord]:
    """Return running servers, newest first; remove stale records."""
    alive = []
    for path in folder.glob("*.json"):
        try:
            record = parse_record(read_document(path, _KIND))
        except (NotFoundError, CorruptError, FormatError):
            # Removed since, or written by an incompatible release.
            continue
        if record.is_alive:
            alive.append(record)
        else:
            with contextlib.suppress(OSError):
                path.unlink()
    return sorted(alive, key=lambda record: record.started, reverse=True)


def find_server(folder: Path, model: str) -> ServerRecord | None:
    """Return the newest running server that serves ``model`` and is no replica of an endpoint."""
    found = (
        each
        for each in running_servers(folder)
        if each.replica is None and not each.rest_url.startswith(UNIX)
    )
    return next((record for record in found if model in record.models), None)


def parse_record(body: dict[str, Any]) -> ServerRecord:
    """Parse a record from a document's body."""
    try:
        return _ADAPTER.validate_python(body)
    except ValidationError as error:
        raise CorruptError(f"invalid record of a server: {sorted(body)}") from error


def _path(folder: Path, pid: int) -> Path:
    return folder / f"{pid}.json"

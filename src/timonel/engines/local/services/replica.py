"""Start, check and stop the process of a replica."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NoReturn

from timonel.engines.coordination.rollout import Replica
from timonel.engines.environment import inherited
from timonel.engines.local.services.folder import ServiceFolder
from timonel.engines.service_spec import ServiceSpec, expand, port_variables
from timonel.processes.ports import UNIX, PortReservation, connect
from timonel.processes.spawn import ProcessCommand, execute, spawn
from timonel.processes.tree import (
    MARKER,
    REPLICA,
    Identity,
    identify,
    kill_all,
    marked,
    outlive_parent,
)

_HOST = "127.0.0.1"
_TAIL_BYTES = 4096
_LINE_CHARACTERS = 2_000


@dataclass
class ReplicaProcess:
    """Process of a replica: a child, or adopted from an earlier supervisor.

    Attributes:
        name: Name of the replica.
        identity: The process.
        descriptor: Its pidfd, readable once it has ended.
        ports: Reserved ports; None for an adopted process, which listens already.
        failures: Failed readiness checks in a row.
        silent_s: Time without an answer at the liveness path.
        checked_at: Time of the last check of that path.
        reason: Why the supervisor killed it.
        checks: Task of its health checks.
    """

    name: str
    identity: Identity
    descriptor: int
    ports: PortReservation | None = None
    failures: int = 0
    silent_s: float = 0.0
    checked_at: float | None = None
    reason: str | None = None
    checks: asyncio.Task[None] | None = field(default=None, repr=False)

    def add_silence(self, now: float, longest_s: float) -> None:
        """Count the time since the last liveness check, which had no answer.

        At most ``longest_s``: a supervisor that was suspended must not take a replica for hung.
        """
        if self.checked_at is not None:
            self.silent_s += min(now - self.checked_at, longest_s)
        self.checked_at = now

    def exit_code(self) -> int | None:
        """Reap the ended process and return its exit code; negative for a signal.

        None if it was adopted.
        """
        with contextlib.suppress(ChildProcessError):
            _, status = os.waitpid(self.identity.pid, 0)
            return os.waitstatus_to_exitcode(status)
        return None

    def signal(self, number: int) -> None:
        """Send a signal unless it has ended."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.descriptor, number)

    def close(self) -> None:
        """Stop the checks and release descriptors and ports."""
        if self.checks is not None:
            self.checks.cancel()
        if self.ports is not None:
            self.ports.release()
        os.close(self.descriptor)


def start(
    folder: ServiceFolder, replica: Replica, spec: ServiceSpec, ports: PortReservation
) -> ReplicaProcess:
    """Start the process of a replica in its folder.

    It records itself before it may outlive this process, so that no later supervisor starts it
    twice.
    """
    attempt = replica.attempt
    env = _environment(folder, replica, spec)
    program = list(spec.command) or [sys.executable, "-m", spec.module or ""]
    arguments = [expand(text, env) for text in (*program, *spec.args)]

    def run(_: ProcessCommand) -> NoReturn:
        folder.write_process(replica.name, attempt)
        os.write(1, f"=== start {attempt} of {replica.name}\n".encode())
        outlive_parent()
        execute(arguments, env)

    place = folder.replica_dir(replica.name)
    place.mkdir(parents=True, exist_ok=True)
    pid = spawn(
        ProcessCommand(arguments[0], arguments[1:], env, str(place), place / "log"),
        run,
    )
    identity = identify(pid)
    descriptor = os.pidfd_open(pid)  # not reaped yet, so the PID is still the child's
    return ReplicaProcess(replica.name, identity or Identity(pid, 0, ""), descriptor, ports)


def adopt(folder: ServiceFolder, replica: Replica) -> ReplicaProcess | None:
    """Return the running process of an earlier supervisor's replica, if any."""
    identity = folder.process_of(replica)
    if identity is None or not replica.has_process:
        return None
    try:
        descriptor = os.pidfd_open(identity.pid)
    except ProcessLookupError:
        return None
    # Checked after opening: from here on the descriptor cannot mean another process.
    if not identity.is_alive:
        os.close(descriptor)
        return None
    return ReplicaProcess(replica.name, identity, descriptor)


def sockets(name: str, spec: ServiceSpec) -> dict[str, str]:
    """Return the addresses of a replica's Unix sockets by port; none if it has ports."""
    if spec.sockets is None:
        return {}
    return {port: f"{UNIX}{spec.sockets}/{name}/{port}.sock" for port in spec.ports}


def kill_remains(folder: ServiceFolder, name: str) -> bool:
    """Kill all processes of a replica; return whether none survives."""
    return kill_all(lambda: marked(folder.token, inside=f"{REPLICA}={name}"))


async def answers(address: str, path: str | None, timeout_s: float) -> bool:
    """Return whether a GET of a path is answered with a status of 200 to 399.

    Without a path, whether the address accepts connections.
    """
    host = "localhost" if address.startswith(UNIX) else address
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await connect(address)
            try:
                if path is None:
                    return True
                request = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
                writer.write(request.encode())
                version, _, rest = (await reader.readline()).partition(b" ")
                return version.startswith(b"HTTP/1.") and b"200" <= rest[:3] < b"400"
            finally:
                writer.close()
    except (OSError, TimeoutError, ValueError):
        return False


def last_line(folder: ServiceFolder, name: str) -> str | None:
    """Return the last line that a replica printed since its last start, if any."""
    try:
        with folder.replica_log(name).open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return None
    last = next((line.strip() for line in reversed(lines) if line.strip()), "===")
    return None if last.startswith("===") else last[:_LINE_CHARACTERS]


def _environment(folder: ServiceFolder, replica: Replica, spec: ServiceSpec) -> dict[str, str]:
    return {
        # Output goes to a file, which Python buffers in blocks, and users follow the logs.
        "PYTHONUNBUFFERED": "1",
        **inherited(),
        **({} if spec.workspace is None else {"TIMONEL_WORKSPACE": spec.workspace}),
        **spec.env,
        "HOST": _HOST if spec.sockets is None else f"{UNIX}{spec.sockets}/{replica.name}",
        **port_variables(_ports(replica.addresses)),
        MARKER: folder.token,
        REPLICA: replica.name,
    }


def _ports(addresses: Mapping[str, str]) -> dict[str, int]:
    return {
        name: 0 if address.startswith(UNIX) else int(address.rpartition(":")[2])
        for name, address in addresses.items()
    }

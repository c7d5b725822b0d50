"""Handle of a server process, for its parent. Never imports TensorFlow."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

from timonel.errors import ServingError
from timonel.processes.spawn import describe_exit
from timonel.serving.credentials import ANONYMOUS, Credentials
from timonel.serving.server_records import ServerRecord, parse_record, running_servers
from timonel.serving.settings import ServerSettings
from timonel.storage import Workspace

_LOGS_KEPT = 10
_TAIL = 20


class Server:
    """A running server process, owned by this object.

    It ends with the Python process that started it, unless started with ``detach``. As a context
    manager, it stops the server at the end of the block.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        record: ServerRecord,
        log: Path,
        caller: Credentials = ANONYMOUS,
    ) -> None:
        self._process = process
        self._record = record
        self._log = log
        self.caller = caller

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        models = ", ".join(self.models)
        return f"<Server of {models} at {self.rest_url}, gRPC at {self.grpc_address}>"

    @property
    def rest_url(self) -> str:
        """Base URL of the REST API, such as ``http://127.0.0.1:8501``."""
        return self._record.rest_url

    @property
    def grpc_address(self) -> str | None:
        """Address of the gRPC API; None if gRPC is off."""
        return self._record.grpc_address

    @property
    def models(self) -> tuple[str, ...]:
        """Names of the served models."""
        return self._record.models

    @property
    def pid(self) -> int:
        """Process ID of the server."""
        return self._record.pid

    @property
    def is_running(self) -> bool:
        """Whether the server process is running."""
        return self._process.poll() is None

    @property
    def log_path(self) -> Path:
        """Log file of the server."""
        return self._log

    def logs(self) -> str:
        """Return the server's log so far."""
        return self._log.read_text(errors="replace")

    def stop(self, *, timeout_s: float = 60.0) -> int:
        """Stop the server after its in-flight requests. Idempotent.

        Args:
            timeout_s: Time in seconds after which the server is killed.

        Returns:
            The exit code; 0 after a clean shutdown.
        """
        self._signal(signal.SIGTERM)
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
        return self._close()

    def wait(self) -> int:
        """Block until the server has ended, forwarding SIGTERM and Ctrl-C to it.

        The first Ctrl-C lets the server answer in-flight requests, the second kills it.

        Returns:
            The exit code: 0 after a clean shutdown, -N if signal N killed the server.
        """
        with _forward_signal(signal.SIGTERM, self._signal):
            try:
                self._process.wait()
            except KeyboardInterrupt:
                self._signal(signal.SIGTERM)
                try:
                    self._process.wait()
                except KeyboardInterrupt:
                    self._process.kill()
        return self._close()

    def _signal(self, number: int) -> None:
        # Popen reaps the process, so its PID cannot have been reused.
        self._process.send_signal(number)

    def _close(self) -> int:
        code = self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        return code


@contextlib.contextmanager
def _forward_signal(number: signal.Signals, send: Callable[[int], None]) -> Iterator[None]:
    """Forward a signal during the block, if in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, lambda received, _: send(received))
    try:
        yield
    finally:
        signal.signal(number, before)


def launch(settings: ServerSettings, workspace: Workspace, *, detach: bool = False) -> Server:
    """Start a server process and return once it is ready.

    Raises:
        ServingError: The server failed to start; the message is the server's.
    """
    log = _new_log(workspace.servers / "logs")
    read_end, write_end = os.pipe()
    try:
        process = _spawn(log, write_end)
    except BaseException:
        os.close(read_end)
        raise
    finally:
        os.close(write_end)
    orders = {
        "settings": settings.model_dump(mode="json"),
        "report": write_end,
        "detach": detach,
        "log": str(log),
    }
    try:
        _send_request(process, orders, keep_open=not detach)
        report = _read_report(read_end)
    except BaseException:
        process.kill()
        process.wait()
        raise
    finally:
        os.close(read_end)
    if "ready" in report:
        return Server(process, parse_record(report["ready"]), log, _owner_credentials(settings))
    raise _failure(process, report, log)


def _owner_credentials(settings: ServerSettings) -> Credentials:
    """Return the credentials with which this process accesses its server."""
    tls = settings.access.tls
    return Credentials(
        settings.access.owner_key, certificate=None if tls is None else tls.certificate
    )


def _spawn(log: Path, report: int) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "timonel.serving"],
            # Unbuffered: no data is left to flush to a process that has died.
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=(report,),
            # Ctrl-C in a terminal goes to every process of the group. A new session lets the parent
            # forward it instead, so that the server gets one signal and time to drain.
            start_new_session=True,
        )


def _send_request(
    process: subprocess.Popen[bytes], orders: dict[str, Any], *, keep_open: bool
) -> None:
    assert process.stdin is not None
    # If the process died at once, its missing report tells so.
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(json.dumps(orders).encode() + b"\n")
    if not keep_open:
        process.stdin.close()


def _read_report(descriptor: int) -> dict[str, Any]:
    content = b""
    while not content.endswith(b"\n"):
        # Wake up every second, so that Python handles Ctrl-C.
        readable, _, _ = select.select([descriptor], [], [], 1.0)
        if not readable:
            continue
        chunk = os.read(descriptor, 65536)
        if not chunk:
            return {}
        content += chunk
    report: dict[str, Any] = json.loads(content)
    return report


def _failure(process: subprocess.Popen[bytes], report: dict[str, Any], log: Path) -> ServingError:
    code = process.wait()
    if process.stdin is not None:
        process.stdin.close()
    if "error" in report:
        return ServingError(report["error"], hint=report["hint"])
    lines = log.read_text(errors="replace").splitlines()[-_TAIL:]
    last = next((line for line in reversed(lines) if line.strip()), "nothing")
    return ServingError(
        f"The server {describe_exit(code)} before it was ready. Last line of its log: {last}",
        hint=f"see {log}",
    )


def _new_log(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    in_use = {record.log for record in running_servers(folder.parent)}
    old = sorted(folder.glob("*.log"), key=lambda path: path.stat().st_mtime)
    for path in old[: -_LOGS_KEPT + 1]:
        if str(path) not in in_use:
            path.unlink(missing_ok=True)
    return folder / f"{uuid.uuid4().hex[:12]}.log"

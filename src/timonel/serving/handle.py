"""Handle of a server process, for its parent. Never imports TensorFlow."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

from timonel.serving.credentials import ANONYMOUS, Credentials
from timonel.serving.server_records import ServerRecord


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
    def idle(self) -> tuple[str, ...]:
        """Those of `models` that had no version to serve when the server started."""
        return self._record.idle

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

"""Servers that the benchmark of serving starts, freezes while others are measured, and stops."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

import _cores
import _measure
from _jobs import BenchmarkError

from timonel.processes.tree import REPLICA

_MARK = "BENCHMARK_MARK"
_POLL_S = 0.02
_ASK_S = 20.0
PORTS_EACH = 40
_PORTS = range(12000, 32000, PORTS_EACH)
_blocks = itertools.islice(
    # Another benchmark that runs at the same time begins elsewhere.
    itertools.cycle(_PORTS),
    os.getpid() % len(_PORTS),
    None,
)


class EndedError(BenchmarkError):
    """A server has ended by itself."""


class Server:
    """A command with all processes that come of it.

    They are known by a variable in their environment, which all of them inherit, wherever they
    are moved to; those that have written their title over it, as children of those.

    Args:
        command: The command.
        env: What is added to its environment.
        folder: Folder in which it runs.
        pipe: Whether its standard input and output are pipes.
        cores: Cores that it may use; None: those of servers.
    """

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        folder: Path,
        *,
        pipe: bool = False,
        cores: tuple[int, ...] | None = None,
    ) -> None:
        self.log = folder / "log"
        self.mark = f"serving-{uuid.uuid4().hex}"
        self.started_at = time.monotonic()
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*_cores.pinned(cores or _cores.servers()), *command], cwd=folder,
                # A server forked from a zygote shows the second only.
                env={**os.environ, **env, _MARK: self.mark, REPLICA: self.mark},
                stderr=log, start_new_session=True,
                stdin=subprocess.PIPE if pipe else subprocess.DEVNULL,
                stdout=subprocess.PIPE if pipe else log,
            )  # fmt: skip

    def pids(self) -> list[int]:
        """Return its processes."""
        return _measure.marked(self.mark)

    def memory_mib(self) -> float:
        """Return the sum of its processes' proportional set sizes."""
        return _measure.used_mib(self.pids())

    def check(self) -> None:
        """Raise if it has ended."""
        if (code := self.process.poll()) is not None:
            raise EndedError(f"it ended with {code}: {self.tail()}")

    def tail(self) -> str:
        """Return the last lines of its log as one."""
        lines = self.log.read_text(errors="replace").splitlines()
        told = [line.strip() for line in lines if line.strip()]
        return " / ".join(told[-4:])[-600:]

    def freeze(self) -> None:
        """Take the processor from it."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Give it the processor back."""
        self._signal(signal.SIGCONT)

    def end(self) -> None:
        """Ask it to end, and go on."""
        self.thaw()
        self.process.terminate()

    def stop(self, seconds: float = 15) -> None:
        """End it in order, and what is left of it by force."""
        self.end()
        deadline = time.monotonic() + seconds
        while self.pids() and time.monotonic() < deadline:
            self.process.poll()
            time.sleep(0.1)
        self._signal(signal.SIGKILL)
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()

    def _signal(self, number: signal.Signals) -> None:
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def post(url: str, body: bytes, timeout_s: float = 60) -> bytes:
    """Post a JSON document and return the answer's body."""
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            return bytes(answer.read())
    except urllib.error.HTTPError as error:
        told = error.read()[:300].decode(errors="replace")
        raise BenchmarkError(f"status {error.code}: {told}") from error


def call(port: int, method: str, message: bytes, metadata: Sequence[tuple[str, str]] = ()) -> bytes:
    """Make a call of gRPC with a message that is written already; return the answer's."""
    import grpc

    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(f"127.0.0.1:{port}", options) as channel:
        try:
            return bytes(channel.unary_unary(method)(message, timeout=60, metadata=metadata))
        except grpc.RpcError as error:
            raise BenchmarkError(f"{error.code()}: {error.details()}") from error


def first_answer(server: Server, url: str, body: bytes, seconds: float) -> tuple[float, bytes]:
    """Ask until an answer comes; return the seconds since the start, and the answer."""
    deadline = time.monotonic() + seconds
    last: Exception = BenchmarkError("never asked")
    while time.monotonic() < deadline:
        server.check()
        try:
            answer = post(url, body, timeout_s=_ASK_S)
        except (OSError, BenchmarkError) as error:  # refused, or a status while it loads
            last = error
            time.sleep(_POLL_S)
        else:
            return time.monotonic() - server.started_at, answer
    raise BenchmarkError(f"no answer in {seconds:.0f} s ({last}): {server.tail()}")


def free_ports() -> int:
    """Return the first of ``PORTS_EACH`` ports in a row, given to nobody, that are free now.

    They lie below those that the system gives to whoever asks for any, which a process of another
    server, or a connection of a client, might have before the server has taken its own.
    """
    while True:
        first = next(_blocks)
        if all(map(_is_free, range(first, first + PORTS_EACH))):
            return first


def _is_free(port: int) -> bool:
    with socket.socket() as bound:
        try:
            bound.bind(("", port))
        except OSError:
            return False
    return True

"""Real database servers for tests, each in a folder and on a port of its own."""

from __future__ import annotations

import contextlib
import getpass
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from pathlib import Path

import psycopg
import pymysql

USER, DATABASE = "tuner", "optuna"


class Server(ABC):
    """A database server on loopback; it can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None
        # Database servers refuse to run as root.
        self._user = "nobody" if os.getuid() == 0 else getpass.getuser()
        folder.mkdir()
        shutil.chown(folder, self._user)
        self._create()
        self.start()

    url: str
    """Address without a password."""

    def start(self) -> None:
        """Start the server; return once it accepts connections."""
        deadline = time.monotonic() + 60
        self._process = None
        while True:
            # PostgreSQL refuses to start while processes of a killed server still end.
            if self._process is None or self._process.poll() is not None:
                self._process = subprocess.Popen(
                    self._command(),
                    cwd=self.folder,
                    user=self._user,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
            try:
                self._connect()
            except (psycopg.OperationalError, pymysql.OperationalError):
                assert time.monotonic() < deadline
                time.sleep(0.1)
            else:
                return

    def kill(self) -> None:
        """Kill the server and its processes."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    @abstractmethod
    def _create(self) -> None:
        """Create an empty database."""

    @abstractmethod
    def _connect(self) -> None:
        """Connect and disconnect."""

    @abstractmethod
    def _command(self) -> list[str]: ...

    def _run(self, *command: str, text: str | None = None) -> None:
        subprocess.run(
            command,
            check=True,
            cwd=self.folder,
            user=self._user,
            input=None if text is None else text.encode(),
            capture_output=True,
        )


def _free_port() -> int:
    """Return a free port below those of outgoing connections, which a client could take."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class PostgreSQL(Server):
    """PostgreSQL that trusts its clients."""

    @property
    def url(self) -> str:  # type: ignore[override]
        return f"postgresql://{USER}@127.0.0.1:{self.port}/postgres"

    @staticmethod
    def is_installed() -> bool:
        return all(map(shutil.which, ("initdb", "postgres")))

    def _create(self) -> None:
        self._run("initdb", "-D", str(self.folder / "data"), "-A", "trust", "-U", USER)

    def _connect(self) -> None:
        psycopg.connect(self.url).close()

    def _command(self) -> list[str]:
        data = str(self.folder / "data")
        return ["postgres", "-D", data, "-p", str(self.port), "-k", "", "-h", "127.0.0.1"]


class MySQL(Server):
    """MariaDB, whose user needs a password."""

    password = "not a secret"

    @property
    def url(self) -> str:  # type: ignore[override]
        return f"mysql://{USER}@127.0.0.1:{self.port}/{DATABASE}"

    @staticmethod
    def is_installed() -> bool:
        return all(map(shutil.which, ("mariadbd", "mariadb-install-db")))

    def _create(self) -> None:
        self._run("mariadb-install-db", "--no-defaults", f"--datadir={self.folder / 'data'}")
        script = (
            f"create database {DATABASE};\nflush privileges;\n"
            f"create user {USER}@localhost identified by '{self.password}';\n"
            f"grant all on {DATABASE}.* to {USER}@localhost;\n"
        )
        self._run(*self._command(), "--bootstrap", text=script)

    def _connect(self) -> None:
        pymysql.connect(host="127.0.0.1", port=self.port, user=USER, password=self.password).close()

    def _command(self) -> list[str]:
        return [
            "mariadbd",
            "--no-defaults",
            f"--datadir={self.folder / 'data'}",
            f"--port={self.port}",
            "--bind-address=127.0.0.1",
            f"--socket={self.folder / 'socket'}",
        ]

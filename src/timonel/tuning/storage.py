"""Storage of trials: a journal in the workspace, or a database."""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

from optuna.exceptions import StorageInternalError
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend

from timonel.errors import CorruptError, DataError, MissingExtraError, SpecError

JOURNAL = "journal.log"
# SQLAlchemy's driver, its extra, and connection arguments, by database.
_DRIVERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "postgresql": ("postgresql+psycopg", "postgresql", {"connect_timeout": 10}),
    # Unlike libpq, PyMySQL reads no file with passwords by itself.
    # Its timeout of connections does not cover the server's greeting.
    "mysql": (
        "mysql+pymysql",
        "mysql",
        {"read_default_file": "~/.my.cnf", "connect_timeout": 10, "read_timeout": 60},
    ),
}
_APPEND_S = 1.0
"""Time that another process, such as optuna-dashboard, may hold the journal's lock."""
# Names of passwords in the query of a URL.
_PASSWORDS = frozenset({"password", "passwd", "sslpassword", "ssl_key_password"})


def open_storage(url: str | None, folder: Path) -> BaseStorage:
    """Return Optuna's storage of a study.

    Args:
        url: Address of a database, such as ``postgresql://user@host/database``; None for the
            journal.
        folder: The study's folder, which holds the journal.
    """
    if url is None:
        return JournalStorage(_Journal(str(folder / JOURNAL)))
    return _database(url)


def _database(url: str) -> BaseStorage:
    # SQLAlchemy takes 0.3 s to import.
    from sqlalchemy.engine import make_url  # noqa: PLC0415
    from sqlalchemy.exc import ArgumentError, SQLAlchemyError  # noqa: PLC0415

    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):  # ValueError: the port is no number
        raise SpecError(
            "the storage is not a URL", hint="as in postgresql://user@host/database"
        ) from None
    if parsed.password is not None or not _PASSWORDS.isdisjoint(parsed.query):
        raise SpecError(
            "the URL of the storage contains a password, which other users could read",
            hint="remove it; PostgreSQL's clients read PGPASSWORD and ~/.pgpass, MySQL's ~/.my.cnf",
        )
    if parsed.drivername not in _DRIVERS:
        raise SpecError(
            f"a storage is a database of {' or '.join(_DRIVERS)}, got {parsed.drivername!r}",
            hint="as in postgresql://user@host/database; without --storage, a file is used",
        )
    driver, extra, arguments = _DRIVERS[parsed.drivername]
    try:
        storage = RDBStorage(
            parsed.set(drivername=driver).render_as_string(),
            engine_kwargs={"pool_pre_ping": True, "connect_args": arguments},
        )
    except ImportError:
        raise MissingExtraError(f"the storage {parsed.drivername}", extra) from None
    except SQLAlchemyError as error:
        raise DataError(
            f"the storage {url} cannot be used: {_reason(error)}",
            hint="check the address, the user, the password and the database",
        ) from error
    except TypeError as error:  # PyMySQL lacks an option of the query
        raise SpecError(
            f"the storage {url} cannot be used: {error}",
            hint="remove the option from the URL",
        ) from error
    except RuntimeError as error:  # another release of Optuna has written the tables
        raise SpecError(f"the storage {url} cannot be used: {error}") from error
    weakref.finalize(storage, storage.engine.dispose)  # Optuna leaves connections open
    return storage


class _Journal(JournalFileBackend):
    """Journal that raises the errors of Optuna's other storages."""

    def read_logs(self, log_number_from: int) -> Generator[dict[str, Any], None, None]:
        try:
            yield from super().read_logs(log_number_from)
        except OSError as error:
            raise StorageInternalError from error
        except ValueError as error:
            raise CorruptError(f"{self._file_path} is damaged: {error}") from error

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        try:
            super().append_logs(logs)
        except OSError as error:
            raise StorageInternalError from error


@contextlib.contextmanager
def storage_errors(name: str) -> Iterator[None]:
    """Translate Optuna's storage errors to `DataError`."""
    try:
        yield
    except StorageInternalError as error:
        raise DataError(
            f"the storage of the study {name} failed: {_reason(error)}",
            hint=f"once it works again, 'timonel studies resume {name}' continues the study",
        ) from error


def _reason(error: BaseException) -> str:
    """Return the first error of a chain, in one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    # PostgreSQL's client adds lines of advice.
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else type(error).__name__


def repair_journal(folder: Path) -> None:
    """Remove Optuna's lock and an incomplete last line, which a killed process may leave.

    Optuna would wait 30 s for the lock. The next record would be appended to the incomplete line,
    and the journal become unreadable. The caller holds the study's lock.
    """
    lock = folder / f"{JOURNAL}.lock"
    deadline = time.monotonic() + _APPEND_S
    while lock.is_symlink() and time.monotonic() < deadline:
        time.sleep(0.02)
    lock.unlink(missing_ok=True)
    with (folder / JOURNAL).open("r+b") as file:
        file.truncate(file.read().rfind(b"\n") + 1)

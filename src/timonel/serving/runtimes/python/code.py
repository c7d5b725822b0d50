"""A version's own Python code: importing it, calling it, and what becomes of what it raises.

For a process that holds one version: the code's folder is put on the path of modules, where it
stays, so that the code finds what lies beside it, and two versions cannot be taken for each other.
"""

from __future__ import annotations

import importlib.util
import io
import logging
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from timonel.serving.status import Code, StatusError

_LOG = logging.getLogger(__name__)
_PLACES_KEPT = 100


class Source:
    """A file of Python that was imported. Thread-safe.

    Args:
        file: The file; its name without the suffix becomes the module's, so that what was pickled
            with its classes is found again.

    Raises:
        StatusError: It cannot be imported; the traceback is in the log.
    """

    def __init__(self, file: Path) -> None:
        self.name = file.name
        self._folder = str(file.parent)
        self._lock = threading.Lock()
        self._told: set[tuple[type[BaseException], str, int | None]] = set()
        self.module: ModuleType = self.prepare(lambda: _import(file), f"importing {file.name}")

    def prepare(self, step: Callable[[], Any], name: str) -> Any:
        """Return what a step of loading returns.

        Raises:
            StatusError: It raised. Loading is tried again only where that may have passed by then.
        """
        try:
            return step()
        except StatusError:
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001 - becomes the load's status
            self._tell(error, name)
            code = Code.FAILED_PRECONDITION
            if isinstance(error, ConnectionError | TimeoutError):
                code = Code.UNAVAILABLE
            elif isinstance(error, MemoryError):
                code = Code.RESOURCE_EXHAUSTED
            raise StatusError(code, f"{name} failed: {_named(error)}") from None

    def call(self, function: Callable[[Any], Any], argument: Any, name: str) -> Any:
        """Return what the code returns for a request.

        Args:
            function: The code.
            argument: Its one argument.
            name: What to call it in the log.

        Raises:
            StatusError: What it raised, in a line: ``INVALID_ARGUMENT`` for a `ValueError`,
                ``INTERNAL`` for all else; a `StatusError` as it is.
        """
        try:
            return function(argument)
        except StatusError:
            raise
        except ValueError as error:
            self._tell(error, name)
            raise StatusError(Code.INVALID_ARGUMENT, _line(error) or _named(error)) from None
        except (Exception, SystemExit) as error:  # noqa: BLE001 - becomes the answer
            self._tell(error, name)
            raise StatusError(Code.INTERNAL, _named(error)) from None

    def _tell(self, error: BaseException, name: str) -> None:
        """Log an error: with its traceback the first time that it is raised at that place."""
        frames = traceback.extract_tb(error.__traceback__)
        place = (type(error), frames[-1].filename, frames[-1].lineno) if frames else None
        with self._lock:
            is_new = place is not None and place not in self._told
            if is_new and place is not None and len(self._told) < _PLACES_KEPT:
                self._told.add(place)
        if is_new:
            _LOG.error("%s failed\n%s", name, self._traceback(error))
        else:
            # What clients do wrong, they may do all day.
            level = logging.DEBUG if isinstance(error, ValueError) else logging.ERROR
            _LOG.log(level, "%s failed again: %s", name, _named(error))

    def _traceback(self, error: BaseException) -> str:
        """Return a traceback that begins with the code's own first frame."""
        frame = error.__traceback__
        while frame is not None and not frame.tb_frame.f_code.co_filename.startswith(self._folder):
            frame = frame.tb_next
        kept = error.__traceback__ if frame is None else frame
        return "".join(traceback.format_exception(type(error), error, kept)).rstrip()


def _import(file: Path) -> ModuleType:
    # Byte code beside the file would change the version, and the next look would see that.
    sys.dont_write_bytecode = True
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # What the code prints is in the log when it happens, and also if the process dies.
            stream.reconfigure(line_buffering=True)
    sys.path.insert(0, str(file.parent))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is no file of Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return module


def _named(error: BaseException) -> str:
    line = _line(error)
    return f"{type(error).__name__}: {line}" if line else type(error).__name__


def _line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]

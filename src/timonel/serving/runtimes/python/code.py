"""Import and call a version's Python code, and translate its exceptions.

Only for a process that holds a single version: the code's folder stays on ``sys.path``, so that the
code finds modules beside it, and modules of different versions cannot be mixed up.
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
_MAX_PLACES = 100


class PythonFile:
    """An imported Python file. Thread-safe.

    Args:
        file: The file; its name without the suffix becomes the module's name, so that pickled
            instances of its classes can be loaded.
    """

    def __init__(self, file: Path) -> None:
        self.name = file.name
        self._folder = str(file.parent)
        self._lock = threading.Lock()
        self._logged_places: set[tuple[type[BaseException], str, int | None]] = set()
        self.module: ModuleType = self.prepare(lambda: _import(file), f"importing {file.name}")

    def prepare(self, step: Callable[[], Any], name: str) -> Any:
        """Run a step of loading and return its result."""
        try:
            return step()
        except StatusError:
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001 - becomes the load's status
            self._log(error, name)
            code = Code.FAILED_PRECONDITION
            if isinstance(error, ConnectionError | TimeoutError):
                code = Code.UNAVAILABLE
            elif isinstance(error, MemoryError):
                code = Code.RESOURCE_EXHAUSTED
            raise StatusError(code, f"{name} failed: {_named(error)}") from None

    def call(self, function: Callable[[Any], Any], argument: Any, name: str) -> Any:
        """Call the code for a request and return its result."""
        try:
            return function(argument)
        except StatusError:
            raise
        except ValueError as error:
            self._log(error, name)
            raise StatusError(Code.INVALID_ARGUMENT, _line(error) or _named(error)) from None
        except (Exception, SystemExit) as error:  # noqa: BLE001 - becomes the answer
            self._log(error, name)
            raise StatusError(Code.INTERNAL, _named(error)) from None

    def _log(self, error: BaseException, name: str) -> None:
        """Log an error, with its traceback only once per place."""
        frames = traceback.extract_tb(error.__traceback__)
        place = (type(error), frames[-1].filename, frames[-1].lineno) if frames else None
        with self._lock:
            is_first = place is not None and place not in self._logged_places
            if is_first and place is not None and len(self._logged_places) < _MAX_PLACES:
                self._logged_places.add(place)
        if is_first:
            _LOG.error("%s failed\n%s", name, self._traceback(error))
        else:
            # Clients may repeat a mistake all day.
            level = logging.DEBUG if isinstance(error, ValueError) else logging.ERROR
            _LOG.log(level, "%s failed again: %s", name, _named(error))

    def _traceback(self, error: BaseException) -> str:
        """Format a traceback from the code's first own frame on."""
        frame = error.__traceback__
        while frame is not None and not frame.tb_frame.f_code.co_filename.startswith(self._folder):
            frame = frame.tb_next
        kept = error.__traceback__ if frame is None else frame
        return "".join(traceback.format_exception(type(error), error, kept)).rstrip()


def _import(file: Path) -> ModuleType:
    # Bytecode beside the file would count as a change of the version on the next poll.
    sys.dont_write_bytecode = True
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Output appears in the log at once, and is not lost if the process dies.
            stream.reconfigure(line_buffering=True)
    sys.path.insert(0, str(file.parent))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return module


def _named(error: BaseException) -> str:
    line = _line(error)
    return f"{type(error).__name__}: {line}" if line else type(error).__name__


def _line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]

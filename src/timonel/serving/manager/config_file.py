"""Read the list of models from a file, and follow its changes."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from pathlib import Path

from timonel.serving.manager.model_config import first_models, next_models, parse_model_config
from timonel.serving.settings import ModelSettings, ServerSettings
from timonel.serving.status import Code, StatusError

_LOG = logging.getLogger(__name__)

Reconfigure = Callable[[Sequence[ModelSettings]], Future[None]]


def read_models(path: str) -> tuple[ModelSettings, ...]:
    """Return the models in a ModelServerConfig file, to start a server.

    Raises:
        StatusError: The file cannot be read or is invalid.
    """
    return first_models(parse_model_config(read_text(path), path))


def read_text(path: str) -> str:
    """Return a file's text.

    Raises:
        StatusError: The file cannot be read.
    """
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise StatusError(Code.NOT_FOUND, f"{path}; No such file or directory") from error
    except (OSError, UnicodeDecodeError) as error:
        raise StatusError(Code.UNKNOWN, f"{path}; {error}") from error


class ConfigFollower:
    """Apply a ModelServerConfig file periodically, whether it has changed or not.

    If the file cannot be read or is rejected, the present state stays; repeats of an error are not
    logged again.

    Args:
        path: The file.
        period_s: Seconds between reads.
        reconfigure: Applies the models that were read.
    """

    def __init__(self, path: str, period_s: float, reconfigure: Reconfigure) -> None:
        self._path = path
        self._period_s = period_s
        self._reconfigure = reconfigure
        self._told: str | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="config", daemon=True)

    def start(self) -> None:
        """Start following the file."""
        self._thread.start()

    def stop(self) -> None:
        """Stop following the file."""
        self._stop.set()
        self._thread.join()

    def _follow(self) -> None:
        while not self._stop.wait(self._period_s):
            try:
                models = next_models(parse_model_config(read_text(self._path), self._path))
            except StatusError as error:
                self._tell(error)
            else:
                # Do not wait: a model that never becomes available must not end the polling.
                self._reconfigure(models).add_done_callback(self._end)

    def _end(self, done: Future[None]) -> None:
        try:
            done.result()
        except StatusError as error:
            self._tell(error)
        except CancelledError:
            return
        else:
            self._told = None

    def _tell(self, error: StatusError) -> None:
        text = f"{error} {getattr(error, 'diagnosis', '')}".rstrip()
        if text != self._told:
            _LOG.error("the configuration in %s is not applied: %s", self._path, text)
        self._told = text


@contextlib.contextmanager
def followed(settings: ServerSettings, reconfigure: Reconfigure) -> Iterator[None]:
    """Follow a server's configuration file during the block, if configured."""
    if settings.config_file is None or settings.config_poll_s <= 0:
        yield
        return
    follower = ConfigFollower(settings.config_file, settings.config_poll_s, reconfigure)
    follower.start()
    try:
        yield
    finally:
        follower.stop()

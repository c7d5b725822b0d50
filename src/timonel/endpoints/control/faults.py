"""Errors that last over many turns of the control plane, each logged once."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from timonel.errors import TimonelError

logger = logging.getLogger(__name__)


class Faults:
    """Present errors by step.

    Args:
        name: What they concern, for the log.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._current: dict[str, str] = {}

    @property
    def message(self) -> str | None:
        """The errors in one line; None without any."""
        return "; ".join(dict.fromkeys(self._current.values())) or None

    @contextlib.contextmanager
    def of(self, step: str) -> Iterator[None]:
        """Keep the error of a step, so that other steps and endpoints go on."""
        try:
            yield
        except TimonelError as error:
            text = str(error)
            if text not in self._current.values():
                logger.error("%s: %s", self._name, text)  # noqa: TRY400 - not of this program
            self._current[step] = text
        except Exception as error:
            # A defect that concerns one endpoint must not stop the others.
            text = f"internal error ({step}): {type(error).__name__}: {error}"
            if text not in self._current.values():
                logger.exception("%s: %s", self._name, step)
            self._current[step] = text
        else:
            self._current.pop(step, None)

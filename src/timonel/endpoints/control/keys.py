"""API keys of an endpoint, read again when their file changes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from timonel.endpoints.gateway.access import read_api_keys
from timonel.errors import InputError, SpecError

_SETTLE_S = 0.5
"""A file that changed so recently may be only half written."""


class ApiKeys:
    """Keys of one endpoint. A file that cannot be read leaves the keys as they are.

    Args:
        current: Keys by client that the gateway has; None if it has none.
    """

    def __init__(self, current: Mapping[str, str] | None) -> None:
        self.current = current

    def refresh(self, path: Path, now: float) -> None:
        """Read the file.

        Args:
            path: The file.
            now: The time in seconds since the epoch.

        Raises:
            InputError: The file cannot be read.
            SpecError: The file is invalid.
        """
        effect = "its keys stay as they were" if self.current else "no request is accepted"
        try:
            if self.current and 0 <= now - path.stat().st_mtime < _SETTLE_S:
                return
            self.current = read_api_keys(path)
        except OSError as error:
            reason = error.strerror or error
            raise InputError(f"cannot read the API keys {path}: {reason}; {effect}") from error
        except (InputError, SpecError) as error:
            raise SpecError(f"{error}; {effect}", hint=error.hint) from error

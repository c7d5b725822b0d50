"""API keys, certificate and public keys of an endpoint, read again when their files change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar

from timonel.endpoints.access_files import read_api_keys, read_certificate, read_jwks
from timonel.endpoints.gateway.parts import Secrets
from timonel.endpoints.spec import Access
from timonel.errors import InputError, SpecError, TimonelError
from timonel.serving.auth.reloaded_file import Stamp, stamp

_SETTLE_S = 0.5
"""A file that changed so recently may be only half written."""
_T = TypeVar("_T")


class WatchedFiles(Generic[_T]):
    """Contents of files, read again when they change; the last valid ones if that fails.

    Args:
        what: What they contain, for errors.
        current: What applies before the first reading; None for nothing.
    """

    def __init__(self, what: str, read: Callable[..., _T], current: _T | None) -> None:
        self.what = what
        self.current = current
        self._read = read
        self._known: tuple[tuple[Path, ...], tuple[Stamp, ...]] | None = None

    def refresh(self, paths: tuple[Path, ...], now: float) -> None:
        """Read the files, if they have changed.

        Args:
            now: The time in seconds since the epoch.
        """
        stamps = tuple(map(stamp, paths))
        if (paths, stamps) == self._known:
            return
        changed_at = max((found[2] / 1e9 for found in stamps if found is not None), default=0.0)
        if self.current is not None and 0 <= now - changed_at < _SETTLE_S:
            return
        try:
            for path in paths:
                if path.exists() and not path.is_file():
                    raise InputError(f"{path} is not a regular file")  # could block
            self.current = self._read(*paths)
        except TimonelError as error:
            effect = "no request is accepted" if self.current is None else "they stay as they were"
            raise SpecError(f"{self.what}: {error}; {effect}", hint=error.hint) from error
        self._known = (paths, stamps)


class AccessFiles:
    """Files of an endpoint's access."""

    def __init__(self, current: Secrets) -> None:
        self._api_keys = WatchedFiles("API keys", read_api_keys, current.api_keys)
        self._certificate = WatchedFiles("certificate", read_certificate, current.certificate)
        self._jwks = WatchedFiles("keys of tokens", read_jwks, current.jwks)

    def needed(self, access: Access) -> Iterator[tuple[WatchedFiles[Any], tuple[Path, ...]]]:
        """Yield what an endpoint needs, with the paths of the files."""
        if access.api_keys is not None:
            yield self._api_keys, (Path(access.api_keys),)
        if access.tls is not None:
            yield self._certificate, (Path(access.tls.cert), Path(access.tls.key))
        if access.jwt is not None and "jwt" in access.files:
            yield self._jwks, (Path(access.jwt.jwks),)

    @property
    def secrets(self) -> Secrets:
        """What the files contain."""
        return Secrets(self._api_keys.current, self._certificate.current, self._jwks.current)

"""Admit requests: the right that each needs, its credentials, and the number at once.

REST and gRPC share one object. For one event loop. Rights do not depend on the loaded models:
without one, the response is the same whether or not the model, method or path exists.
"""

from __future__ import annotations

import contextlib
import hmac
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from timonel.serving.auth.keys import Keyring, watched_keys
from timonel.serving.auth.reloaded_file import ReloadedFile
from timonel.serving.settings.auth import AccessSettings, Right
from timonel.serving.status import Code, NotStartedError, StatusError

_OPEN_CALLS = frozenset(
    {
        "/grpc.health.v1.Health/Check",
        "/grpc.health.v1.Health/Watch",
        "/grpc.health.v1.Health/List",
        "/inference.GRPCInferenceService/ServerLive",
        "/inference.GRPCInferenceService/ServerReady",
    }
)
_ADMIN_CALLS = frozenset({"/tensorflow.serving.ModelService/HandleReloadConfigRequest"})


def right_for_call(method: str) -> Right | None:
    """Return the right that a gRPC method needs; None: anyone may call it."""
    if method in _OPEN_CALLS:
        return None
    return Right.ADMIN if method in _ADMIN_CALLS else Right.USE


def secret_of(headers: Iterable[tuple[str | bytes, str | bytes]]) -> str | None:
    """Return the API key in HTTP headers or gRPC metadata with lower-case names.

    None without one. Of several, none counts: the result is empty, which is no valid key.
    """
    secrets = []
    for name, value in headers:
        key = name if isinstance(name, str) else name.decode("latin-1")
        if key not in {"authorization", "x-api-key"}:
            continue
        text = value if isinstance(value, str) else value.decode("latin-1")
        if key == "authorization":
            scheme, _, rest = text.strip().partition(" ")
            text = rest.strip() if scheme.lower() == "bearer" else ""
        secrets.append(text)
    if len(secrets) > 1:
        return ""
    return secrets[0] if secrets else None


class AccessControl:
    """Authenticate and authorize requests, and limit their number.

    Args:
        settings: The access settings; without keys, every client may do everything.
    """

    def __init__(self, settings: AccessSettings) -> None:
        self.settings = settings
        self._keys: ReloadedFile[Keyring] | None = None
        if settings.api_keys is not None:
            self._keys = watched_keys(Path(settings.api_keys))
        self._most = settings.limits.max_requests
        self._taken = 0
        self.guards_nothing = not (settings.is_closed or self._most)
        """Whether all requests are admitted without checks."""

    def admit(self, right: Right, secret: str | None) -> None:
        """Admit a request that needs ``right``, with the result of `secret_of`."""
        if self._keys is None:
            return
        keys = self._keys.refreshed(time.monotonic())
        found = None if secret is None else self._recognise(secret, keys)
        if found is None:
            raise StatusError(Code.UNAUTHENTICATED, "no valid API key")
        if right is Right.ADMIN and found is not Right.ADMIN:
            raise StatusError(Code.PERMISSION_DENIED, "not allowed for these credentials")

    @contextlib.contextmanager
    def slot(self) -> Iterator[None]:
        """Count a request during the block."""
        if self._most is not None and self._taken >= self._most:
            raise NotStartedError("too many requests at once")
        self._taken += 1
        try:
            yield
        finally:
            self._taken -= 1

    def _recognise(self, secret: str, keys: Keyring) -> Right | None:
        owner = self.settings.owner_key
        if owner is not None and hmac.compare_digest(
            secret.encode("utf-8", "surrogatepass"), owner.encode()
        ):
            return Right.USE
        return keys.recognise(secret, time.time())

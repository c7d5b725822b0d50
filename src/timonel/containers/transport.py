"""HTTP requests to registries: time limits, retries and the size of answers."""

from __future__ import annotations

import logging
from typing import Any, Self

from timonel.errors import MissingExtraError

try:
    import urllib3
except ImportError as error:  # pragma: no cover - a submit-only installation
    raise MissingExtraError("building images", "kubernetes") from error

Response = urllib3.BaseHTTPResponse
HTTPError = urllib3.exceptions.HTTPError
_MOST_BYTES = 4 << 20
"""Maximum size of manifests, configurations and messages, as of other clients."""
_CONNECT_S = 10.0
_ANSWER_S = 30.0
_STORED_S = 120.0
"""How long a registry may take to store an upload before it answers."""
_WAIT_S = 60.0
_logger = logging.getLogger(__name__)


class _Retry(urllib3.Retry):
    """Tell what happened before each new attempt, and limit the wait that a registry asks for."""

    def get_retry_after(self, response: Response) -> float | None:
        found = super().get_retry_after(response)
        return None if found is None else min(found, _WAIT_S)

    def increment(
        self,
        method: str | None = None,
        url: str | None = None,
        response: Response | None = None,
        error: Exception | None = None,
        _pool: Any = None,
        _stacktrace: Any = None,
    ) -> Self:
        following = super().increment(method, url, response, error, _pool, _stacktrace)
        host = "" if _pool is None else f" {_pool.host}:{_pool.port}"
        if isinstance(error, urllib3.exceptions.TimeoutError):
            _logger.warning("the registry%s does not answer; trying again", host)
        elif response is not None and not response.get_redirect_location():
            wait_s = self.get_retry_after(response)
            wait = f" in {wait_s:.0f} s" if wait_s else ""
            _logger.warning(
                "the registry%s answers %d; trying again%s", host, response.status, wait
            )
        return following


_RETRIES = _Retry(
    total=5,
    connect=2,
    read=2,
    backoff_factor=0.3,
    status_forcelist=(429, 500, 502, 503, 504),
    allowed_methods=None,
    raise_on_status=False,
)


def open_pool() -> urllib3.PoolManager:
    """Return new connections, which repeat failed requests."""
    return urllib3.PoolManager(maxsize=8, timeout=timeout_for("GET"), retries=_RETRIES)


def timeout_for(method: str) -> urllib3.Timeout:
    """Return the time limits of a request."""
    return urllib3.Timeout(connect=_CONNECT_S, read=_STORED_S if method == "PUT" else _ANSWER_S)


def content_of(answer: Response) -> bytes:
    """Read a short content."""
    content = answer.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        answer.close()
        raise ValueError(f"sends more than {_MOST_BYTES >> 20} MiB where a document is expected")
    return content

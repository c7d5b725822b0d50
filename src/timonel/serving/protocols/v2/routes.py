"""URLs of the Open Inference Protocol over REST. Pure.

`timonel.serving.auth.url_rights` maps the same URLs to permissions; a property test keeps them in
sync.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final
from urllib.parse import unquote

from timonel.serving.manager.catalogue import ModelSpec
from timonel.serving.protocols.v2.request import spec_of
from timonel.serving.status import not_found

_ROOT: Final = "/v2"
_GET: Final = frozenset({"GET"})


class Action(Enum):
    """An endpoint of the server or of a model."""

    LIVE = "live"
    READY = "ready"
    SERVER = "server"
    MODEL = "model"
    MODEL_READY = "model_ready"
    INFER = "infer"


HEALTH: Final = frozenset({Action.LIVE, Action.READY})
_SERVER: Mapping[tuple[str, ...], Action] = {
    (): Action.SERVER,
    ("",): Action.SERVER,
    ("health", "live"): Action.LIVE,
    ("health", "ready"): Action.READY,
}
_MODEL: Mapping[tuple[str, ...], Action] = {
    (): Action.MODEL,
    ("ready",): Action.MODEL_READY,
    ("infer",): Action.INFER,
}
_METHODS: Mapping[Action, frozenset[str]] = {
    Action.LIVE: _GET | {"HEAD"},
    Action.READY: _GET | {"HEAD"},
    Action.INFER: frozenset({"POST"}),
}


@dataclass(frozen=True)
class Route:
    """An action and its model version, if any."""

    action: Action
    spec: ModelSpec | None = None


class MethodNotAllowedError(Exception):
    """The URL does not support the request's method.

    Args:
        allowed: The supported methods.
    """

    def __init__(self, allowed: frozenset[str]) -> None:
        super().__init__(f"expected the method {' or '.join(sorted(allowed))}")
        self.allowed = allowed


def is_v2(path: str) -> bool:
    """Whether a path belongs to this protocol."""
    return path == _ROOT or path.startswith(f"{_ROOT}/")


def match(method: str, path: str) -> Route:
    """Return the route of a request.

    Args:
        method: The HTTP method.
        path: The path, still percent-encoded.

    Raises:
        StatusError: The URL does not exist.
        MethodNotAllowedError: The URL does not support the method.
    """
    parts = tuple(path.split("/")[2:])
    route = _of_model(parts) if parts[:1] == ("models",) else _of_server(parts)
    if route is None:
        raise not_found(f"expected a URL of the Open Inference Protocol, got {path:.200}")
    allowed = _METHODS.get(route.action, _GET)
    if method not in allowed:
        raise MethodNotAllowedError(allowed)
    return route


def _of_server(parts: tuple[str, ...]) -> Route | None:
    action = _SERVER.get(parts)
    return None if action is None else Route(action)


def _of_model(parts: tuple[str, ...]) -> Route | None:
    """Return the route of ``models/<name>[/versions/<version>][/<verb>]``."""
    name, rest = unquote("".join(parts[1:2])), parts[2:]
    version = ""
    if len(rest) > 1 and rest[0] == "versions":
        version, rest = unquote(rest[1]), rest[2:]
        if not version:
            return None
    action = _MODEL.get(rest)
    return None if action is None or not name else Route(action, spec_of(name, version))

"""What a URL of the Open Inference Protocol asks for. Pure.

`timonel.serving.access.urls` reads the same URLs for rights; a property test holds them equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final
from urllib.parse import unquote

from timonel.serving.servables import ModelSpec
from timonel.serving.status import not_found
from timonel.serving.v2.request import spec_of

_ROOT: Final = "/v2"
_GET: Final = frozenset({"GET"})
_POST: Final = frozenset({"POST"})


class Action(Enum):
    """What is asked of the server, or of a model."""

    LIVE = "live"
    READY = "ready"
    SERVER = "server"
    INDEX = "index"
    MODEL = "model"
    MODEL_READY = "model_ready"
    INFER = "infer"


HEALTH: Final = frozenset({Action.LIVE, Action.READY})
_SERVER: Mapping[tuple[str, ...], Action] = {
    (): Action.SERVER,
    ("",): Action.SERVER,
    ("health", "live"): Action.LIVE,
    ("health", "ready"): Action.READY,
    ("repository", "index"): Action.INDEX,
}
_MODEL: Mapping[tuple[str, ...], Action] = {
    (): Action.MODEL,
    ("ready",): Action.MODEL_READY,
    ("infer",): Action.INFER,
}
_METHODS: Mapping[Action, frozenset[str]] = {
    Action.LIVE: _GET | {"HEAD"},
    Action.READY: _GET | {"HEAD"},
    Action.INDEX: _POST,
    Action.INFER: _POST,
}


@dataclass(frozen=True)
class Route:
    """An action, and the version of a model that it is about, if any."""

    action: Action
    spec: ModelSpec | None = None


class MethodNotAllowedError(Exception):
    """The URL is known, but not with this method.

    Args:
        allowed: The methods that it has.
    """

    def __init__(self, allowed: frozenset[str]) -> None:
        super().__init__(f"expected the method {' or '.join(sorted(allowed))}")
        self.allowed = allowed


def is_v2(path: str) -> bool:
    """Tell whether a path is one of this protocol."""
    return path == _ROOT or path.startswith(f"{_ROOT}/")


def match(method: str, path: str) -> Route:
    """Return what a request asks for.

    Args:
        method: The HTTP method.
        path: The path, still percent-encoded.

    Raises:
        StatusError: There is no such URL.
        MethodNotAllowedError: There is, for other methods.
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
    """Return what ``models/<name>[/versions/<version>][/<verb>]`` asks for."""
    name, rest = unquote("".join(parts[1:2])), parts[2:]
    version = ""
    if len(rest) > 1 and rest[0] == "versions":
        version, rest = unquote(rest[1]), rest[2:]
        if not version:
            return None
    action = _MODEL.get(rest)
    return None if action is None or not name else Route(action, spec_of(name, version))

"""Match URLs to actions by TensorFlow Serving's patterns. Pure.

As there, the matched text includes the query string: ``/v1/models/m?x=1`` names a model ``m?x=1``.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from enum import Enum
from urllib.parse import unquote

from timonel.serving.manager.catalogue import ModelSpec
from timonel.serving.status import StatusError, invalid_argument

PREFIX = "/v1/"
_FLAGS = re.IGNORECASE | re.ASCII
_VERSION = r"(?:/versions/(\d+)|/labels/([^/:]+))?"
_COMPUTE = re.compile(rf"/v1/models/([^/:]+){_VERSION}:(classify|regress|predict)\Z", _FLAGS)
_READ = re.compile(rf"/v1/models(?:/([^/:]+))?{_VERSION}(/metadata)?\Z", _FLAGS)
_CONFIG = re.compile(r"/v1/config(?:\?format=(json|text))?\Z", _FLAGS)
_INT64_DIGITS = 19
_KEPT, _KEPT_LENGTH = 256, 256


class Action(Enum):
    """Action of a REST request."""

    PREDICT = "predict"
    CLASSIFY = "classify"
    REGRESS = "regress"
    STATUS = "status"
    METADATA = "metadata"
    LIST = "list"
    CONFIG = "config"


COMPUTING = frozenset({Action.PREDICT, Action.CLASSIFY, Action.REGRESS})
"""Actions that run a model."""
_COMPUTING = {action.value: action for action in COMPUTING}


@dataclass(frozen=True)
class Route:
    """An action and its model.

    Args:
        action: The action.
        spec: The model; without a name for `Action.LIST` and `Action.CONFIG`.
        as_text: Whether to answer with a text proto instead of JSON.
    """

    action: Action
    spec: ModelSpec
    as_text: bool = False


class VersionTooLargeError(ValueError):
    """A version number exceeds 64 bits."""


def is_rest(target: str) -> bool:
    """Whether a percent-encoded path belongs to TensorFlow Serving's API."""
    return target[: len(PREFIX)].lower() == PREFIX


def match(method: str, target: str) -> Route:
    """Match a request below ``/v1/`` to its route.

    Args:
        method: The HTTP method.
        target: The path with its query string, still percent-encoded.

    Raises:
        StatusError: The request matches no route.
        VersionTooLargeError: The request matches, but its version exceeds 64 bits.
    """
    # Most requests are for a few targets.
    return _kept(method, target) if len(target) <= _KEPT_LENGTH else _match(method, target)


def _match(method: str, target: str) -> Route:
    if method == "POST" and (found := _COMPUTE.match(target)):
        action = _COMPUTING.get(found[4])
        spec = _spec(found[1], found[2], found[3])
        if action is not None:
            return Route(action, spec)
    elif method == "GET" and (found := _READ.match(target)):
        spec = _spec(found[1] or "", found[2], found[3])
        if spec.name:
            return Route(Action.METADATA if found[4] else Action.STATUS, spec)
        if found.end() == len("/v1/models"):
            return Route(Action.LIST, spec)
        raise missing_name()
    elif method == "GET" and (found := _CONFIG.match(target)):
        return Route(Action.CONFIG, ModelSpec(""), as_text=(found[1] or "").lower() == "text")
    raise malformed(method, target)


_kept = functools.lru_cache(_KEPT)(_match)


def malformed(method: str, target: str) -> StatusError:
    """Return the error for a request without a route."""
    return invalid_argument(f"Malformed request: {method} {target}")


def missing_name() -> StatusError:
    """Return the error for a request without a model name."""
    return invalid_argument("Missing model name in request.")


def _spec(name: str, version: str | None, label: str | None) -> ModelSpec:
    number = None
    if version is not None:
        if len(version.lstrip("0")) > _INT64_DIGITS or int(version) >= 2**63:
            raise VersionTooLargeError(f"Failed to convert version: {version} to numeric.")
        number = int(version)
    return ModelSpec(_decoded(name), number, _decoded(label) if label else None)


def _decoded(text: str) -> str:
    return unquote(text)

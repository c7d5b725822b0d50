"""What a URL asks for. Pure; TensorFlow Serving's patterns.

The matched text includes the query string, as there: ``/v1/models/m?x=1`` names a model ``m?x=1``.
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
    """What to do with a model."""

    PREDICT = "predict"
    CLASSIFY = "classify"
    REGRESS = "regress"
    STATUS = "status"
    METADATA = "metadata"
    LIST = "list"
    CONFIG = "config"


COMPUTING = frozenset({Action.PREDICT, Action.CLASSIFY, Action.REGRESS})
"""What needs a model to compute."""
_COMPUTING = {action.value: action for action in COMPUTING}


@dataclass(frozen=True)
class Route:
    """An action and the model it is about.

    Args:
        action: What to do.
        spec: The model; without a name for `Action.LIST` and `Action.CONFIG`.
        as_text: Whether the answer is wanted as a text proto instead of JSON.
    """

    action: Action
    spec: ModelSpec
    as_text: bool = False


class VersionTooLargeError(ValueError):
    """A version that 64 bits do not hold."""


def is_rest(target: str) -> bool:
    """Tell whether a path, still percent-encoded, is one of TensorFlow Serving's API."""
    return target[: len(PREFIX)].lower() == PREFIX


def match(method: str, target: str) -> Route:
    """Return what a request below ``/v1/`` asks for.

    Args:
        method: The HTTP method.
        target: The path with its query string, still percent-encoded.

    Raises:
        StatusError: No such request is known.
        VersionTooLargeError: It is known, but for its version.
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
    """Return the error of a request that is not known."""
    return invalid_argument(f"Malformed request: {method} {target}")


def missing_name() -> StatusError:
    """Return the error of a request that should name a model."""
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

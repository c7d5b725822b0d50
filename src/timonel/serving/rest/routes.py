"""What a URL asks for. Pure; TensorFlow Serving's patterns.

The matched text includes the query string, as there: ``/v1/models/m?x=1`` names a model ``m?x=1``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from urllib.parse import unquote

from timonel.serving.servables import ModelSpec
from timonel.serving.status import invalid_argument

PREFIX = "/v1/"
_TARGET = r"/([^/:]+)(?:/versions/(\d+)|/labels/([^/:]+))?"
_PREDICT = re.compile(rf"/v1/models{_TARGET}:(predict)\Z", re.IGNORECASE)
_READ = re.compile(rf"/v1/models(?:{_TARGET})?(/metadata)?\Z", re.IGNORECASE)


class Action(Enum):
    """What to do with a model."""

    PREDICT = "predict"
    STATUS = "status"
    METADATA = "metadata"
    LIST = "list"


@dataclass(frozen=True)
class Route:
    """An action and the model it is about; a model without a name for `Action.LIST`."""

    action: Action
    spec: ModelSpec


def match(method: str, target: str) -> Route:
    """Return what a request below ``/v1/`` asks for.

    Args:
        method: The HTTP method.
        target: The path with its query string, still percent-encoded.

    Raises:
        StatusError: No such request is known.
    """
    if method == "POST" and (found := _PREDICT.match(target)) and found[4] == "predict":
        return Route(Action.PREDICT, _spec(found))
    if method == "GET" and (found := _READ.match(target)):
        if found[1] is not None:
            return Route(Action.METADATA if found[4] else Action.STATUS, _spec(found))
        if not found[4]:
            return Route(Action.LIST, ModelSpec(""))
        raise invalid_argument("Missing model name in request.")
    raise invalid_argument(f"Malformed request: {method} {target}")


def _spec(found: re.Match[str]) -> ModelSpec:
    version = int(found[2]) if found[2] else None
    if version is not None and version >= 2**63:
        raise invalid_argument(f"Failed to convert version: {found[2]} to numeric.")
    return ModelSpec(unquote(found[1]), version, unquote(found[3]) if found[3] else None)

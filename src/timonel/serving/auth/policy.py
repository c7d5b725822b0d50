"""Permissions of principals on models. Pure.

A decision depends on names only, never on loaded models: without a permission, the response is the
same whether or not the model exists.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import Enum
from fnmatch import fnmatchcase

from timonel.errors import SpecError
from timonel.serving.settings.auth import Action, Grant, parse_grant
from timonel.serving.settings.base import EVERY_MODEL
from timonel.serving.status import Code, StatusError

PRINCIPAL: ContextVar[str | None] = ContextVar("principal", default=None)
"""Name of the sender of the current task's request; None without authentication."""


@dataclass(frozen=True)
class Principal:
    """The sender of a request.

    Args:
        name: The name in logs and limits.
        grants: The granted permissions.
    """

    name: str
    grants: tuple[Grant, ...] = ()

    def may(self, action: Action, model: str) -> bool:
        """Whether the principal may do ``action`` with ``model``, which need not exist."""
        return any(
            action in grant.actions and fnmatchcase(model, grant.models) for grant in self.grants
        )

    def may_everywhere(self, action: Action) -> bool:
        """Whether the principal may do ``action`` with every model and the server."""
        return any(action in grant.actions and grant.models == EVERY_MODEL for grant in self.grants)


VIEWER: ContextVar[Principal | None] = ContextVar("viewer", default=None)
"""The sender of the current task's request, with its permissions."""


def viewer_may(action: Action, model: str, *, is_closed: bool) -> bool:
    """Whether the current request's sender may do ``action`` with a model.

    Args:
        action: The action.
        model: The model's name, or `EVERY_MODEL`.
        is_closed: Whether credentials are required. If so, clients without them may do nothing.
    """
    viewer = VIEWER.get()
    if viewer is None:
        return not is_closed
    return viewer.may_everywhere(action) if model == EVERY_MODEL else viewer.may(action, model)


class Scope(Enum):
    """Access level that a request needs."""

    PUBLIC = "public"
    """Anyone may ask: the response is the same from every server."""
    OPEN = "open"
    """Anyone may ask, as for health checks."""
    KNOWN = "known"
    """Any principal may ask; the response names no model."""
    VIEW = "view"
    """Any principal may ask; the response covers models visible to `VIEWER`."""
    LISTING = "listing"
    """Any principal may ask; the response lists models whose status it may see."""
    MODELS = "models"
    """The action must be allowed on every named model."""
    SERVER = "server"
    """The action must be allowed on every model."""


@dataclass(frozen=True)
class Resource:
    """The action and models that a request is about."""

    scope: Scope
    action: Action | None = None
    models: tuple[str, ...] = field(default=())


_FOR_ALL = frozenset({Scope.PUBLIC, Scope.OPEN, Scope.KNOWN, Scope.VIEW, Scope.LISTING})


def allows(principal: Principal, resource: Resource) -> bool:
    """Whether a principal may make a request."""
    if resource.scope in _FOR_ALL:
        return True
    if resource.action is None:
        return False
    if resource.scope is Scope.SERVER or not resource.models:
        return principal.may_everywhere(resource.action)
    return all(principal.may(resource.action, model) for model in resource.models)


def unauthenticated() -> StatusError:
    """Return the error for missing or invalid credentials, without a reason."""
    return StatusError(Code.UNAUTHENTICATED, "no valid API key, token or certificate")


def denied() -> StatusError:
    """Return the error for a request that the principal may not make."""
    return StatusError(Code.PERMISSION_DENIED, "not allowed for these credentials")


def grants_in(texts: Sequence[str]) -> tuple[Grant, ...]:
    """Parse the grants among a token's scopes, ignoring other scopes."""
    found = []
    for text in texts:
        try:
            found.append(parse_grant(text))
        except SpecError:
            continue
    return tuple(found)

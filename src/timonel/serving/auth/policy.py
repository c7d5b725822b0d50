"""Who may do what with which model. Pure.

A decision looks at names only, never at what is loaded: whoever lacks a right gets the same answer
whether or not a model exists.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import Enum
from fnmatch import fnmatchcase

from timonel.errors import SpecError
from timonel.serving.settings.grants import EVERY_MODEL, Action, Grant, parse_grant
from timonel.serving.status import Code, StatusError

PRINCIPAL: ContextVar[str | None] = ContextVar("principal", default=None)
"""Who sent the request that the present task answers; none where nobody is asked."""


@dataclass(frozen=True)
class Principal:
    """Whoever a request comes from.

    Args:
        name: Its name in logs and limits.
        grants: What it may do.
    """

    name: str
    grants: tuple[Grant, ...] = ()

    def may(self, action: Action, model: str) -> bool:
        """Whether the principal may do ``action`` with ``model``, which need not exist."""
        return any(
            action in grant.actions and fnmatchcase(model, grant.models) for grant in self.grants
        )

    def may_everywhere(self, action: Action) -> bool:
        """Whether the principal may do ``action`` with every model, and so with the server."""
        return any(action in grant.actions and grant.models == EVERY_MODEL for grant in self.grants)


VIEWER: ContextVar[Principal | None] = ContextVar("viewer", default=None)
"""Whoever sent the request that the present task answers, with its rights."""


def viewer_may(action: Action, model: str, *, is_closed: bool) -> bool:
    """Whether whoever sent the present request may do ``action`` with a model.

    Args:
        action: What is done.
        model: The model's name, or `EVERY_MODEL`.
        is_closed: Whether credentials are asked for: then nobody may do anything without any.
    """
    viewer = VIEWER.get()
    if viewer is None:
        return not is_closed
    return viewer.may_everywhere(action) if model == EVERY_MODEL else viewer.may(action, model)


class Scope(Enum):
    """How far a request reaches."""

    PUBLIC = "public"
    """Anyone may ask, whatever the settings: the answer is the same from every server."""
    OPEN = "open"
    """Anyone may ask, such as whether the server lives."""
    KNOWN = "known"
    """Any principal may ask; the answer names no model."""
    VIEW = "view"
    """Any principal may ask; the answer is made of the models that it may see (`VIEWER`)."""
    LISTING = "listing"
    """Any principal may ask; the answer is cut down to the models whose status it may see."""
    MODELS = "models"
    """The action must be allowed on every model that is named."""
    SERVER = "server"
    """The action must be allowed on every model."""


@dataclass(frozen=True)
class Resource:
    """What a request is about."""

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
    """Return the answer to a request without valid credentials; it does not say what is wrong."""
    return StatusError(Code.UNAUTHENTICATED, "expected a valid API key, token or certificate")


def denied() -> StatusError:
    """Return the answer to a request that its principal may not make."""
    return StatusError(Code.PERMISSION_DENIED, "not allowed for these credentials")


def grants_in(texts: Sequence[str]) -> tuple[Grant, ...]:
    """Return the grants among ``texts`` from a token, whose other scopes are no concern of ours."""
    found = []
    for text in texts:
        try:
            found.append(parse_grant(text))
        except SpecError:
            continue
    return tuple(found)

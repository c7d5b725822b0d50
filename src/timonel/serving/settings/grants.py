"""Permissions: actions on models whose names match a pattern."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from timonel.errors import SpecError

EVERY_MODEL = "*"


class Action(Enum):
    """An action on a model or on the server."""

    PREDICT = "predict"
    STATUS = "status"
    METADATA = "metadata"
    ADMIN = "admin"


@dataclass(frozen=True)
class Grant:
    """Actions allowed on the models whose names match a pattern.

    Args:
        actions: The allowed actions; none implies another.
        models: A pattern for model names, with ``*``, ``?`` and ``[...]``.
    """

    actions: frozenset[Action]
    models: str

    def __str__(self) -> str:
        names = [action.value for action in Action if action in self.actions]
        return f"{','.join(names)}:{self.models}"


EVERYTHING = Grant(frozenset(Action), EVERY_MODEL)


def parse_grant(text: str) -> Grant:
    """Parse a permission such as ``predict,status:digits-*``.

    Raises:
        SpecError: The text is not a permission.
    """
    actions, separator, models = text.partition(":")
    known = {action.value: action for action in Action}
    named = [name.strip() for name in actions.split(",")]
    if not separator or not models or not all(name in known for name in named):
        raise SpecError(
            f"expected a permission such as predict,status:digits-*, got {text!r}",
            hint=f"actions are {', '.join(known)}; after the colon follows a pattern of names",
        )
    return Grant(frozenset(known[name] for name in named), models)

"""Permissions: actions on the models whose names match a pattern."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from timonel.errors import SpecError

EVERY_MODEL = "*"


class Action(Enum):
    """What can be done with a model, or with the server."""

    PREDICT = "predict"
    STATUS = "status"
    METADATA = "metadata"
    ADMIN = "admin"


@dataclass(frozen=True)
class Grant:
    """Actions that are allowed on the models whose names match a pattern.

    Args:
        actions: What is allowed; none implies another.
        models: A pattern of names, with ``*``, ``?`` and ``[...]``.
    """

    actions: frozenset[Action]
    models: str

    def __str__(self) -> str:
        names = [action.value for action in Action if action in self.actions]
        return f"{','.join(names)}:{self.models}"


EVERYTHING = Grant(frozenset(Action), EVERY_MODEL)


def parse_grant(text: str) -> Grant:
    """Return the grant that ``text`` describes: ``predict,status:digits-*``.

    Raises:
        SpecError: It is none.
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

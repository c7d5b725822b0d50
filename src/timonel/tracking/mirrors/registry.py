"""Registry of mirrors: the entry points in the group ``timonel.mirrors``."""

from __future__ import annotations

import functools
import importlib.metadata
import os
from collections.abc import Mapping

from timonel.errors import NotFoundError, TimonelError
from timonel.storage.workspace import Workspace
from timonel.tracking.mirrors.base import Mirror

GROUP = "timonel.mirrors"
ENVIRONMENT_VARIABLE = "TIMONEL_MIRRORS"


@functools.cache
def known_mirrors() -> Mapping[str, type[Mirror] | Exception]:
    """Return each mirror's class, or its import error, by name.

    A broken mirror must not break timonel; its error is raised if a user names the mirror, and
    shown by ``timonel doctor``.
    """
    return {point.name: _load(point) for point in importlib.metadata.entry_points(group=GROUP)}


def mirror_class(name: str) -> type[Mirror]:
    """Return the class of a mirror.

    Raises:
        NotFoundError: No mirror has this name.
        TimonelError: The mirror could not be imported.
    """
    known = known_mirrors()
    if name not in known:
        raise NotFoundError(f"expected a mirror, one of {', '.join(known)}, got {name!r}")
    found = known[name]
    if isinstance(found, Exception):
        raise TimonelError(f"expected to import the mirror {name}, got {found!r}") from found
    return found


def installed_mirrors(workspace: Workspace) -> list[Mirror]:
    """Return an instance of each mirror whose package is installed.

    The environment variable ``TIMONEL_MIRRORS`` restricts them to a comma-separated list of names;
    ``none`` disables all of them.
    """
    wanted = named_mirrors()
    return [
        found(workspace)
        for name, found in known_mirrors().items()
        if (wanted is None or name in wanted)
        and not isinstance(found, Exception)
        and found.is_available()
    ]


def named_mirrors() -> frozenset[str] | None:
    """Return the names in ``TIMONEL_MIRRORS``; None if it is not set."""
    asked = os.environ.get(ENVIRONMENT_VARIABLE)
    return None if asked is None else frozenset(name.strip() for name in asked.split(","))


def _load(point: importlib.metadata.EntryPoint) -> type[Mirror] | Exception:
    try:
        loaded: type[Mirror] = point.load()
    except Exception as error:  # noqa: BLE001 - a third-party package; stored and raised on use
        return error
    return loaded

"""Which mirrors there are: the entry points of the group ``timonel.mirrors``."""

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
    """Return each mirror's class, or why it could not be imported, by name.

    A mirror that is broken is no reason to fail; what is wrong with it is raised when somebody
    asks for it by name, and shown by ``timonel doctor``.
    """
    return {point.name: _load(point) for point in importlib.metadata.entry_points(group=GROUP)}


def mirror_class(name: str) -> type[Mirror]:
    """Return the class of a mirror.

    Raises:
        NotFoundError: There is none of that name.
        TimonelError: It could not be imported.
    """
    known = known_mirrors()
    if name not in known:
        raise NotFoundError(f"expected a mirror, one of {', '.join(known)}, got {name!r}")
    found = known[name]
    if isinstance(found, Exception):
        raise TimonelError(f"expected to import the mirror {name}, got {found!r}") from found
    return found


def installed_mirrors(workspace: Workspace) -> list[Mirror]:
    """Return one of each mirror whose package is installed.

    The environment variable ``TIMONEL_MIRRORS`` narrows them down to the names it lists, with
    commas between; ``none`` switches all of them off.
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
    """Return the names in ``TIMONEL_MIRRORS``; None where it is not set."""
    asked = os.environ.get(ENVIRONMENT_VARIABLE)
    return None if asked is None else frozenset(name.strip() for name in asked.split(","))


def _load(point: importlib.metadata.EntryPoint) -> type[Mirror] | Exception:
    try:
        loaded: type[Mirror] = point.load()
    except Exception as error:  # noqa: BLE001 - somebody else's package; kept and raised on use
        return error
    return loaded

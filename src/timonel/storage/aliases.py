"""Aliases of a model's versions, such as champion: moved atomically, with their history.

<model>/.aliases/<n>.json   the n-th change, and all aliases after it

A conditional request creates each change, so of several writers of a folder or bucket one succeeds
and the others see its change. Servers take no folder for a version whose name is not a number.
"""

from __future__ import annotations

import getpass
import json
import os
import re
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from timonel.errors import AlreadyExistsError, CorruptError, NotFoundError, SpecError
from timonel.storage.documents import document, parse_document
from timonel.storage.object_store import PATIENCE_S, ObjectStore
from timonel.storage.uris import is_local, local_path, normalise

FOLDER = ".aliases"
LATEST = "latest"
"""Built-in alias of the newest version."""
_KIND = "model-alias"
_ALIAS = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,63}")
_CHANGE = re.compile(r"([0-9]{6})\.json")
_ATTEMPTS = 20


class AliasChange(BaseModel):
    """A change of an alias. Immutable."""

    model_config = ConfigDict(frozen=True)

    number: int = Field(description="Number of the change, from 1.")
    alias: str = Field(description="The alias.")
    version: int | None = Field(description="Its version from then on; null if removed.")
    before: int | None = Field(description="Its version until then; null if new.")
    by: str = Field(description="User and host.")
    at: float = Field(description="Time in seconds since the epoch.")
    reason: str | None = Field(default=None, description="Why, such as a comparison's figures.")
    aliases: Mapping[str, int] = Field(description="All aliases after the change.")


class Aliases:
    """The aliases of a model. Thread-safe.

    Args:
        place: The model's folder or URI.
        patience_s: Seconds for which requests to a bucket are repeated.
    """

    def __init__(self, place: str | os.PathLike[str], *, patience_s: float = PATIENCE_S) -> None:
        self._place = normalise(place)
        self._store = ObjectStore(self._place, patience_s=patience_s)
        self._latest: AliasChange | None = None

    def read(self) -> Mapping[str, int]:
        """Return the versions by alias."""
        latest = self.latest()
        return {} if latest is None else latest.aliases

    def latest(self) -> AliasChange | None:
        """Return the latest change; None without one."""
        number = max(self._numbers(), default=0)
        if number and (self._latest is None or self._latest.number != number):
            self._latest = self._change(number)  # changes are immutable
        return self._latest if number else None

    def history(self) -> list[AliasChange]:
        """Return all changes, oldest first."""
        return [self._change(number) for number in sorted(self._numbers())]

    def move(
        self,
        alias: str,
        version: int | None,
        *,
        reason: str | None = None,
        expected: Callable[[int | None], None] = lambda _version: None,
    ) -> AliasChange:
        """Give an alias to a version, or remove it; return the change.

        Args:
            version: The version; None removes the alias.
            expected: Called with the present version before each attempt; may raise.
        """
        check_alias(alias)
        for _ in range(_ATTEMPTS):
            latest = self.latest()
            aliases = {} if latest is None else dict(latest.aliases)
            before = aliases.pop(alias, None)
            expected(before)
            if latest is not None and before == version:
                return latest
            if version is not None:
                aliases[alias] = version
            change = AliasChange(
                number=1 if latest is None else latest.number + 1,
                alias=alias,
                version=version,
                before=before,
                by=user_at_host(),
                at=time.time(),
                reason=reason,
                aliases=aliases,
            )
            body = json.dumps(document(_KIND, change.model_dump(mode="json")), indent=2)
            try:
                self._store.create(_name(change.number), f"{body}\n".encode())
            except AlreadyExistsError:
                continue
            return change
        raise SpecError(f"others keep changing the aliases in {self._place}", hint="try again")

    def _numbers(self) -> list[int]:
        # A server looks each second, and most models have no aliases.
        if is_local(self._place) and not (local_path(self._place) / FOLDER).is_dir():
            return []
        _, names = self._store.children(FOLDER)
        return [int(match[1]) for name in names if (match := _CHANGE.fullmatch(name))]

    def _change(self, number: int) -> AliasChange:
        name = _name(number)
        text = self._store.read(name).decode(errors="replace")
        try:
            return AliasChange.model_validate(parse_document(text, _KIND, f"{self._place}/{name}"))
        except ValidationError as error:
            raise CorruptError(
                f"{self._place}/{name} is damaged: {' '.join(str(error).split())[:200]}",
                hint="remove it to return to the aliases before it",
            ) from error


def check_alias(alias: str) -> None:
    """Check that a name can be an alias."""
    if not _ALIAS.fullmatch(alias) or alias == LATEST:
        reason = "it always names the newest version" if alias == LATEST else "it needs a letter"
        raise SpecError(
            f"invalid alias {alias!r}: {reason}",
            hint="use letters, digits, '.', '_' and '-', starting with a letter, such as champion",
        )


def split_alias(reference: str) -> tuple[str, str | None]:
    """Split ``model@alias`` into both; None for other references, such as existing paths."""
    model, at, alias = reference.rpartition("@")
    scheme, separator, path = model.partition("://")
    # The user of a URI, as in s3://user@bucket, is no model.
    is_model = "/" in path if separator else bool(scheme)
    if not (at and is_model and _ALIAS.fullmatch(alias)):
        return reference, None
    if not separator and Path(reference).expanduser().exists():
        return reference, None
    return model, alias


def version_named(alias: str, aliases: Mapping[str, int], model: str) -> int:
    """Return the version of an alias."""
    if alias not in aliases:
        known = ", ".join(sorted(aliases))
        raise NotFoundError(
            f"{model} has no alias {alias}",
            hint=f"its aliases are: {known}"
            if known
            else f"give it one with 'timonel models alias {model} {alias} VERSION'",
        )
    return aliases[alias]


def user_at_host() -> str:
    """Return the present user and host, for records."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def _name(number: int) -> str:
    return f"{FOLDER}/{number:06d}.json"

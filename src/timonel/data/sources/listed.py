"""Files that a table names: where they are, and their content."""

from __future__ import annotations

import contextlib
import errno
import posixpath
from collections.abc import Iterable
from dataclasses import dataclass

from timonel.data.sources.base import UnusableError
from timonel.data.sources.tablefile import MemoryTable
from timonel.data.sources.transient import NEVER_READABLE
from timonel.errors import InputError, MissingExtraError, NotFoundError, SpecError
from timonel.storage.blobs import UNKNOWN_SIZE, Blob
from timonel.storage.bucket_errors import UnavailableError
from timonel.storage.location import Location
from timonel.storage.uris import without_credentials
from timonel.storage.web import RefusedError, WebRules, download, server_of

_SHOWN = 100
"""Characters shown of a name that cannot be read."""
_WEB = ("http://", "https://")


class WebFile(Location):
    """File on a web server that a table names, and the addresses that are allowed."""

    def __init__(self, uri: str, rules: WebRules) -> None:
        super().__init__(uri)
        self.rules = rules

    def read(self) -> bytes:
        """Return the content."""
        return download(self.uri, self.rules)

    def blob(self) -> Blob:
        """Return size and revision as unknown: a table of others may name any server."""
        return super().blob() if self.is_trusted else Blob("", UNKNOWN_SIZE, "")

    @property
    def is_trusted(self) -> bool:
        """Whether its server is the one of the table."""
        return server_of(self.uri) == self.rules.trusted


@dataclass(frozen=True)
class ListedFiles:
    """Files that a table, or the user, names. Thread-safe.

    A table on this machine may name all files; one from a bucket or web server may name files of
    its bucket or server, and of other buckets and servers. Plain http, and loopback and private
    addresses, must be allowed.
    """

    table: Location | None
    http: bool = False
    private: bool = False

    @property
    def are_remote(self) -> bool:
        """Whether names without a scheme are of a bucket or web server."""
        return self.table is not None and not self._is_here

    def place(self, name: str) -> Location:
        """Return the file with a name: relative to the table, or to the current directory."""
        try:
            found = Location(name) if "://" in name else self._beside(name)
        except (SpecError, ValueError) as error:
            reason = error.message if isinstance(error, SpecError) else str(error)
            raise UnusableError(_shown(name), reason) from error
        if found.is_local and not self._is_here:
            raise UnusableError(
                _shown(name), f"{_shown(name)} is on this machine, but {self.table} is not"
            )
        return WebFile(found.uri, self._rules) if found.uri.startswith(_WEB) else found

    def read(self, name: str) -> bytes:
        """Return the content of a file."""
        shown = _shown(name)
        try:
            place = self.place(name)
            if place.is_local and place.path.exists() and not place.path.is_file():
                raise UnusableError(shown, f"{shown} is not a regular file")  # a pipe would wait
            return place.read()
        except NotFoundError as error:
            raise UnusableError(shown, f"{shown} not found") from error
        except (RefusedError, SpecError) as error:
            raise UnusableError(shown, f"cannot read {shown}: {error.message}") from error
        except InputError as error:
            if isinstance(error, MissingExtraError) or not self._rejects(place, error):
                raise
            raise UnusableError(shown, f"cannot read {shown}: {error.message}") from error
        except OSError as error:
            if not isinstance(error, NEVER_READABLE) and error.errno != errno.ENAMETOOLONG:
                raise
            raise UnusableError(shown, f"cannot read {shown}: {error.strerror}") from error

    def folder_of(self, names: Iterable[str]) -> str | None:
        """Return the lowest folder with all files of these names, if they are on this machine."""
        folders: dict[str, str] = {}
        for name in names:
            if (named := posixpath.dirname(name)) not in folders:
                with contextlib.suppress(UnusableError):
                    place = self.place(name)
                    if not place.is_local:
                        return None
                    if place.path.exists():
                        folders[named] = posixpath.dirname(place.uri)
        return posixpath.commonpath(folders.values()) if folders else None

    @property
    def _is_here(self) -> bool:
        return self.table is None or isinstance(self.table, MemoryTable) or self.table.is_local

    @property
    def _rules(self) -> WebRules:
        if self.table is None:
            return WebRules(http=True, private=True)
        uri = self.table.uri
        return WebRules(self.http, self.private, server_of(uri) if uri.startswith(_WEB) else "")

    def _rejects(self, place: Location, error: InputError) -> bool:
        """Tell whether an error is of one file: of a server or bucket that only it names."""
        if isinstance(place, WebFile):
            return not place.is_trusted
        own = "" if self.table is None else server_of(self.table.uri)
        return server_of(place.uri) != own and not isinstance(error, UnavailableError)

    def _beside(self, name: str) -> Location:
        if self.table is None or isinstance(self.table, MemoryTable):
            return Location(name)
        if self.table.is_local:
            beside = self.table.parent / name
            return beside if beside.path.exists() else Location(name)
        if name.startswith("/"):
            return Location(name)
        scheme, _, rest = self.table.uri.partition("://")
        if scheme in {"http", "https"}:
            rest = rest.partition("?")[0]
        bucket, _, path = rest.partition("/")
        below = posixpath.join(posixpath.dirname(path), name)
        if not {".", ".."}.isdisjoint(below.split("/")):
            below = posixpath.normpath(below)
        if below.split("/")[0] == "..":
            raise SpecError(f"it is outside of {scheme}://{bucket}")
        return Location(f"{scheme}://{bucket}/{below}")


def _shown(name: str) -> str:
    return without_credentials(name)[:_SHOWN]

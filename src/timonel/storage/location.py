"""Files and folders at local paths and URIs."""

from __future__ import annotations

import functools
import glob
import hashlib
import os
import posixpath
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from timonel.errors import InputError, NotFoundError
from timonel.storage.atomic import temporary_prefix, write_bytes
from timonel.storage.blobs import Blob
from timonel.storage.digests import digest_file
from timonel.storage.object_store import ObjectStore
from timonel.storage.uris import join, normalise

COMPRESSED_ENDINGS = (".gz", ".bz2", ".xz", ".zst")
_WEB = ("http://", "https://")


class Location:
    """A file, a folder, or a pattern such as ``data/*.csv``: a local path or a URI of a bucket."""

    def __init__(self, location: str | os.PathLike[str]) -> None:
        self.uri = normalise(location)

    def __str__(self) -> str:
        return self.uri

    def __repr__(self) -> str:
        return f"Location({self.uri!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Location) and other.uri == self.uri

    def __hash__(self) -> int:
        return hash(self.uri)

    def __truediv__(self, name: str) -> Location:
        return Location(join(self.uri, name))

    @property
    def is_local(self) -> bool:
        """Whether it is on this machine's file system."""
        return "://" not in self.uri

    @property
    def is_pattern(self) -> bool:
        """Whether it is a pattern, and not a file or folder with such a name."""
        if self.uri.startswith(_WEB) or not glob.has_magic(self.uri):
            return False
        if self.is_local:
            return not self.path.exists()
        return self._blob is None and not any(self.children)

    @property
    def path(self) -> Path:
        """The local path."""
        if not self.is_local:
            raise InputError(f"expected a local path, got {self}", hint="copy it to this machine")
        return Path(self.uri)

    @property
    def resolved(self) -> str:
        """Path without symbolic links, or the URI."""
        return str(self.path.resolve()) if self.is_local else self.uri

    @property
    def name(self) -> str:
        """Name of the file or folder."""
        if self.uri.startswith(_WEB):
            return posixpath.basename(unquote(urlsplit(self.uri).path).rstrip("/"))
        return posixpath.basename(self.uri)

    @property
    def ending(self) -> str:
        """Ending of the name, in lower case, without that of a compression: ``.csv``."""
        root, ending = os.path.splitext(self.name.lower())  # noqa: PTH122 - not of a path
        return os.path.splitext(root)[1] if ending in COMPRESSED_ENDINGS else ending  # noqa: PTH122

    @property
    def parent(self) -> Location:
        """The folder that contains it."""
        if self.is_local:
            return Location(self.path.parent)
        return Location(posixpath.dirname(self.uri))

    def exists(self) -> bool:
        """Tell whether something is there."""
        if self.is_pattern:
            return bool(self.files())
        return self.path.exists() if self.is_local else self.is_file() or self.is_dir()

    def is_file(self) -> bool:
        """Tell whether it is one file."""
        if self.is_pattern:
            return False
        return self.path.is_file() if self.is_local else self._blob is not None

    def is_dir(self) -> bool:
        """Tell whether it is a folder; web servers have none."""
        if self.is_pattern or self.uri.startswith(_WEB):
            return False
        return self.path.is_dir() if self.is_local else not self.is_file() and any(self.children)

    @property
    def children(self) -> tuple[list[str], list[str]]:
        """Names of the folders, and of the files, directly in a folder, sorted."""
        # Not a `cached_property`, which has one lock for all locations before Python 3.12.
        if "_children" not in self.__dict__:
            self._children = self._listed()
        return self._children

    def files(self) -> list[Location]:
        """Return the files of a pattern or below a folder, sorted, or the file itself.

        Files whose names start with a dot or an underscore below a folder are left out, such as
        ``_SUCCESS``.
        """
        if self.is_pattern:
            return [Location(name) for name in self._matches()]
        if self.is_file():
            return [self]
        names = self._names_below()
        return [self / name for name in sorted(names) if all(map(_is_visible, name.split("/")))]

    def first_file(self) -> Location | None:
        """Return one of `files`, without listing all; None if there are none."""
        if self.is_pattern or self.is_file():
            return next(iter(self.files()), None)
        for parent, names in self._walk():
            for name in sorted(names):
                if _is_visible(name):
                    return parent / name
        return None

    def read(self) -> bytes:
        """Return the content of a file."""
        return self.path.read_bytes() if self.is_local else ObjectStore(self.uri).read("")

    def write(self, content: bytes) -> None:
        """Write the file, or replace it."""
        if self.is_local:
            write_bytes(self.path, content)
        else:
            ObjectStore(self.uri).write("", content)

    def blob(self) -> Blob:
        """Return size and checksums of a remote file; the size is -1 if it is not known."""
        found = self._blob
        if found is None:
            raise NotFoundError(f"no file at {self}")
        return found

    @functools.cached_property
    def local(self) -> Path:
        """Path of the file, or of a temporary copy that exists as long as this object."""
        if self.is_local:
            return self.path
        folder = tempfile.mkdtemp(prefix=temporary_prefix())
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        path = Path(folder, self.name or "file")
        ObjectStore(self.uri).download({"": path}, {"": self.blob()})
        return path

    def modified(self) -> int:
        """Return a number that changes when the file does."""
        if self.is_local:
            return self.path.stat().st_mtime_ns
        return revision_number(self.blob())

    def digest(self) -> str:
        """Return the digest of the file."""
        return digest_file(self.local)

    @property
    def _blob(self) -> Blob | None:
        if "_found" not in self.__dict__:
            self._found = self._stat()
        return self._found

    def _stat(self) -> Blob | None:
        try:
            return ObjectStore(self.uri).stat()
        except NotFoundError:
            return None

    def _listed(self) -> tuple[list[str], list[str]]:
        if not self.is_local:
            return ObjectStore(self.uri).children()
        paths = sorted(self.path.iterdir())
        folders = {path.name: path.is_dir() for path in paths}
        return [n for n in folders if folders[n]], [n for n in folders if not folders[n]]

    def _walk(self) -> Iterator[tuple[Location, Sequence[str]]]:
        """Yield each folder that is not hidden with the names of its files."""
        if self.is_local:
            for parent, folders, names in os.walk(self.path):
                folders[:] = sorted(filter(_is_visible, folders))
                yield Location(parent), names
        elif self.is_dir():
            folders, names = self.children
            yield self, names
            for name in filter(_is_visible, folders):
                yield from (self / name)._walk()

    def _names_below(self) -> list[str]:
        if self.is_local:
            found = (path for path in self.path.rglob("*") if path.is_file())
            return [path.relative_to(self.path).as_posix() for path in found]
        return list(ObjectStore(self.uri).find())

    def _matches(self) -> list[str]:
        if self.is_local:
            found = glob.glob(self.uri, recursive=True)  # noqa: PTH207 - the pattern is absolute
            return sorted(name for name in found if Path(name).is_file())
        scheme, _, rest = self.uri.partition("://")
        bucket, _, pattern = rest.partition("/")
        store = ObjectStore(f"{scheme}://{bucket}")
        return [join(store.uri, name) for name in store.glob(pattern)]


def distinct_names(files: Sequence[Location]) -> list[str]:
    """Return the ends of the files' paths, from the first folder in which they differ."""
    paths = [file.uri.split("/") for file in files]
    parts = enumerate(zip(*paths, strict=False))
    first = next((index for index, names in parts if len(set(names)) > 1), -1)
    return ["/".join(path[first:]) for path in paths]


def revision_number(blob: Blob) -> int:
    """Return a number that changes when an object is replaced."""
    return int(hashlib.sha256(blob.revision.encode()).hexdigest()[:14], 16)


def _is_visible(name: str) -> bool:
    return not name.startswith((".", "_"))

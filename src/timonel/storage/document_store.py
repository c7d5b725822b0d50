"""Small documents of several readers and writers: in a folder, or wherever an engine keeps them.

Names are relative paths with slashes, such as ``digits/revisions/000003.json``.
"""

from __future__ import annotations

import abc
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from timonel.errors import CorruptError, InputError, NotFoundError
from timonel.storage.atomic import (
    append_line,
    aside_name,
    create_bytes,
    parse_content,
    unwritable,
    write_bytes,
)
from timonel.storage.documents import document, parse_document

_T = TypeVar("_T")


class DocumentStore(abc.ABC):
    """Interface of a store of documents. Thread-safe.

    All methods raise `InputError` or `EngineError` if the store cannot be read or written.
    """

    @abc.abstractmethod
    def find(self, folder: str = "") -> list[str]:
        """Return the names of all documents below a folder, sorted."""

    @abc.abstractmethod
    def read_bytes(self, name: str) -> bytes:
        """Return a document's content."""

    @abc.abstractmethod
    def create_bytes(self, name: str, content: bytes) -> None:
        """Create a document."""

    @abc.abstractmethod
    def write_bytes(self, name: str, content: bytes) -> None:
        """Create or replace a document. Readers see the former content or this one."""

    @abc.abstractmethod
    def remove(self, folder: str) -> None:
        """Remove a document, or a folder with all of its documents. Idempotent."""

    @abc.abstractmethod
    def append_line(self, name: str, line: str) -> None:
        """Append a line to a document, or create it; for one writer at a time."""

    @abc.abstractmethod
    def place(self, name: str) -> str:
        """Return where a document is, for messages."""

    def read(self, name: str, kind: str) -> dict[str, Any]:
        """Return a document of a kind; see `timonel.storage.documents.read_document`."""
        try:
            text = self.read_bytes(name).decode()
        except UnicodeDecodeError as error:
            raise CorruptError(f"{self.place(name)} is not valid JSON: {error}") from error
        return parse_document(text, kind, self.place(name))

    def read_lines(self, name: str, parse: Callable[[bytes], _T]) -> list[_T]:
        """Parse the lines of a document that `append_line` writes; a missing one has none.

        Args:
            parse: Parses one line; those for which it raises ValueError are skipped.
        """
        try:
            content = self.read_bytes(name)
        except NotFoundError:
            return []
        return parse_content(content, parse)

    def create(self, name: str, kind: str, body: Mapping[str, Any]) -> None:
        """Create a document of a kind; see `create_bytes`."""
        self.create_bytes(name, _encoded(kind, body))

    def write(self, name: str, kind: str, body: Mapping[str, Any]) -> None:
        """Create or replace a document of a kind; see `write_bytes`."""
        self.write_bytes(name, _encoded(kind, body))


def _encoded(kind: str, body: Mapping[str, Any]) -> bytes:
    return json.dumps(document(kind, body), indent=2).encode() + b"\n"


@dataclass(frozen=True)
class FolderDocuments(DocumentStore):
    """Documents in a folder of this machine."""

    root: Path

    def find(self, folder: str = "") -> list[str]:
        """Return the names of all files below a folder, sorted; hidden ones are left out."""
        return sorted(_files(self.root / folder, f"{folder}/" if folder else ""))

    def read_bytes(self, name: str) -> bytes:
        """Return a document's content."""
        path = self.root / name
        try:
            return path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            raise NotFoundError(f"no document at {path}") from None
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror or error}") from error

    def create_bytes(self, name: str, content: bytes) -> None:
        """Create a document, and its folder."""
        create_bytes(self._prepared(name), content)

    def write_bytes(self, name: str, content: bytes) -> None:
        """Create or replace a document."""
        write_bytes(self._prepared(name), content)

    def remove(self, folder: str) -> None:
        """Remove a document or a folder; a folder disappears at once."""
        path = self.root / folder
        if not path.is_dir():
            path.unlink(missing_ok=True)
            return
        aside = path.with_name(aside_name(path.name))
        path.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)

    def append_line(self, name: str, line: str) -> None:
        """Append a line to a document."""
        append_line(self._prepared(name), line)

    def place(self, name: str) -> str:
        """Return a document's path."""
        return str(self.root / name)

    def _prepared(self, name: str) -> Path:
        path = self.root / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise unwritable(path.parent, error) from error
        return path


def _files(folder: Path, prefix: str) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir():
                    yield from _files(folder / entry.name, f"{prefix}{entry.name}/")
                else:
                    yield prefix + entry.name
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise InputError(f"cannot read {folder}: {error.strerror or error}") from error

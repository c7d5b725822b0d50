"""Documents in ConfigMaps, or in Secrets if they are confidential, one each.

``digits/rollouts/0001.state.json`` of the store ``endpoints`` is the ConfigMap
``endpoints.digits.rollouts.0001--state.json``.
"""

from __future__ import annotations

import re
import threading
from base64 import b64decode, b64encode
from collections.abc import Iterable
from typing import Literal

from timonel.engines.kubernetes.api import Api, Object
from timonel.engines.kubernetes.api_errors import ConflictError
from timonel.engines.kubernetes.names import MANAGED, MAX_NAME
from timonel.engines.kubernetes.watched import Watched
from timonel.errors import AlreadyExistsError, CorruptError, InputError, NotFoundError, SpecError
from timonel.storage.document_store import DocumentStore

STORE_LABEL = "timonel.dev/documents"
"""The store, such as ``endpoints``."""
FOLDER_LABEL = "timonel.dev/document-folder"
"""First part of the document's name."""
NAME_ANNOTATION = "timonel.dev/document"
"""The document's name."""
MAX_BYTES = 1 << 20
"""Largest content of a ConfigMap or a Secret."""

Kind = Literal["ConfigMap", "Secret"]
_KEY = "content"
_MAX_OBJECT_NAME = 253
_APPENDS = 3
# Without dots in folders and double hyphens in files, no two documents share an object.
_FOLDER = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", re.ASCII)
_FILE = re.compile(r"[a-z0-9]+([.-][a-z0-9]+)*\.[a-z0-9]+", re.ASCII)


class ClusterDocuments(DocumentStore):
    """Documents in ConfigMaps or Secrets of one namespace.

    Args:
        store: Name of the store, such as ``endpoints``.
        is_watching: Whether reads come from objects that a watch keeps current, for a process that
            reads all the time; its own writes are visible at once. Otherwise each read is a
            request.
    """

    def __init__(
        self, api: Api, store: str, *, is_watching: bool = False, kind: Kind = "ConfigMap"
    ) -> None:
        self._api = api
        self._kind = kind
        self._store = store
        self._watched = Watched(api, kind, {STORE_LABEL: store}) if is_watching else None
        # One write at a time: an answer must not be recorded after that of a later write.
        self._writing = threading.Lock()

    def find(self, folder: str = "") -> list[str]:
        """Return the names of all documents below a folder, sorted."""
        if self._watched is not None:
            objects: Iterable[Object] = self._watched.objects().values()
        else:
            objects = self._list(folder)
        return sorted(name for name in map(_name, objects) if _is_below(name, folder))

    def read_bytes(self, name: str) -> bytes:
        """Return a document's content."""
        return self._content(name, self._read(name)).encode()

    def create_bytes(self, name: str, content: bytes) -> None:
        """Create a document."""
        with self._writing:
            self._record(self._api.create(self._manifest(name, content)))

    def write_bytes(self, name: str, content: bytes) -> None:
        """Create or replace a document."""
        manifest = self._manifest(name, content)
        with self._writing:
            try:
                self._patch(manifest)
            except NotFoundError:
                self._create_or_patch(manifest)

    def remove(self, folder: str) -> None:
        """Remove a document, or a folder: first the documents that were created first.

        So a document that marks the folder as deleted is there until all others are gone.
        """
        with self._writing:
            found = self._found(folder)
            for each in sorted(found, key=_creation):
                self._delete(each["metadata"]["name"], each["metadata"]["uid"])

    def append_line(self, name: str, line: str) -> None:
        """Append a line to a document, or create it."""
        with self._writing:
            for attempt in range(_APPENDS):
                try:
                    self._append(name, f"{line}\n")
                except (AlreadyExistsError, ConflictError, NotFoundError):
                    if attempt == _APPENDS - 1:
                        raise
                    self._refresh(name)
                else:
                    return

    def place(self, name: str) -> str:
        """Return the object of a document."""
        return f"{self._kind} '{self._object_name(name)}' in namespace '{self._api.namespace}'"

    def close(self) -> None:
        """Stop watching, within 30 s."""
        if self._watched is not None:
            self._watched.close()

    def _read(self, name: str) -> Object:
        object_name = self._object_name(name)
        try:
            if self._watched is None:
                return self._api.get(self._kind, object_name)
            return self._watched.objects()[object_name]
        except (KeyError, NotFoundError):
            raise NotFoundError(f"no document {name}: no {self.place(name)}") from None

    def _list(self, folder: str) -> list[Object]:
        first = {FOLDER_LABEL: folder.partition("/")[0]} if folder else {}
        return self._api.list(self._kind, {STORE_LABEL: self._store, **first})

    def _append(self, name: str, line: str) -> None:
        try:
            found = self._read(name)
        except NotFoundError:
            self._record(self._api.create(self._manifest(name, line.encode())))
            return
        before = self._content(name, found)
        if before and not before.endswith("\n"):
            before += "\n"
        manifest = self._manifest(name, f"{before}{line}".encode())
        manifest["metadata"]["resourceVersion"] = found["metadata"]["resourceVersion"]
        self._patch(manifest)

    def _refresh(self, name: str) -> None:
        """Learn from the cluster what another process has done to a document."""
        object_name = self._object_name(name)
        try:
            self._record(self._api.get(self._kind, object_name))
        except NotFoundError:
            if self._watched is not None:
                self._watched.forget(object_name)

    def _create_or_patch(self, manifest: Object) -> None:
        try:
            self._record(self._api.create(manifest))
        except AlreadyExistsError:  # another process was faster
            self._patch(manifest)

    def _patch(self, manifest: Object) -> None:
        body = {key: manifest[key] for key in ("metadata", "data")}
        self._record(self._api.patch(self._kind, manifest["metadata"]["name"], body))

    def _found(self, folder: str) -> list[Object]:
        """Read a document or those of a folder from the cluster."""
        if "." not in folder:
            return [each for each in self._list(folder) if _is_below(_name(each), folder)]
        found = self._api.find(self._kind, self._object_name(folder))
        return [] if found is None else [found]

    def _delete(self, object_name: str, uid: str) -> None:
        try:
            self._api.delete(self._kind, object_name, uid=uid)
        except ConflictError:
            return  # another process has created it again
        except NotFoundError:
            pass
        if self._watched is not None:
            self._watched.forget(object_name, uid)

    def _record(self, found: Object) -> None:
        if self._watched is not None:
            self._watched.record(found)

    def _manifest(self, name: str, content: bytes) -> Object:
        if len(content) > MAX_BYTES:
            raise InputError(
                f"the document {name} would have {len(content):,} bytes, and a {self._kind} "
                f"holds {MAX_BYTES:,}",
                hint="make it shorter",
            )
        try:
            text = content.decode()
        except UnicodeDecodeError as error:
            raise InputError(f"the document {name} is not text: {error}") from error
        labels = {**MANAGED, STORE_LABEL: self._store, FOLDER_LABEL: name.partition("/")[0]}
        return {
            "apiVersion": "v1",
            "kind": self._kind,
            "metadata": {
                "name": self._object_name(name),
                "labels": labels,
                "annotations": {NAME_ANNOTATION: name},
            },
            "data": {_KEY: text if self._kind == "ConfigMap" else b64encode(content).decode()},
        }

    def _content(self, name: str, found: Object) -> str:
        try:
            text = str(found["data"][_KEY])
            return text if self._kind == "ConfigMap" else b64decode(text, validate=True).decode()
        except (KeyError, TypeError, ValueError):
            raise CorruptError(f"the {self.place(name)} has no valid key '{_KEY}'") from None

    def _object_name(self, name: str) -> str:
        """Return the name of a document's object."""
        *folders, file = name.split("/")
        stem, _, ending = file.rpartition(".")
        found = ".".join([self._store, *folders, stem.replace(".", "--"), ending])
        is_valid = all(map(_FOLDER.fullmatch, folders)) and _FILE.fullmatch(file)
        if not is_valid or len(found) > _MAX_OBJECT_NAME or len(name.partition("/")[0]) > MAX_NAME:
            raise SpecError(
                f"the cluster cannot keep a document named {name!r}",
                hint="use lower-case letters, digits and hyphens, and an extension such as .json",
            )
        return found


def _name(found: Object) -> str:
    return str((found["metadata"].get("annotations") or {}).get(NAME_ANNOTATION, ""))


def _is_below(name: str, folder: str) -> bool:
    return name.startswith(f"{folder}/") if folder else bool(name)


def _creation(found: Object) -> tuple[str, int]:
    metadata = found["metadata"]
    return metadata.get("creationTimestamp", ""), int(metadata["resourceVersion"])

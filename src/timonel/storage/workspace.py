"""Workspace: the folder or bucket that holds everything timonel creates.

A workspace in a bucket has a local copy, see `timonel.storage.local_copy`. A folder that a cluster
mounts from a claim is used as a bucket, ``shared:///folder``; its FORMAT has an ID, too.

.timonel/
  FORMAT            the workspace document; in a bucket, with an ID
  jobs/<job id>/    one folder per job, owned by its engine
  runs/<run id>/    one folder per run record
  models/<name>/<version>/
  datasets/         references to datasets by digest
  servers/          one document per running server
  services/<name>/  one folder per service, owned by its engine
  endpoints/<name>/ one folder per endpoint
  studies/<name>/   one folder per study of trials
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from timonel.errors import (
    AlreadyExistsError,
    CorruptError,
    InputError,
    NotFoundError,
    SpecError,
)
from timonel.storage.atomic import unwritable, write_bytes
from timonel.storage.deletion import Deletion
from timonel.storage.documents import document, parse_document, read_document, write_document
from timonel.storage.ownership import check_own
from timonel.storage.uris import is_local, join, local_path, normalise, shared_folder, shared_uri

if TYPE_CHECKING:
    from timonel.storage.local_copy import LocalCopy

FOLDER_NAME = ".timonel"
ENVIRONMENT_VARIABLE = "TIMONEL_WORKSPACE"
CLAIM_VARIABLE = "TIMONEL_KUBERNETES_CLAIM"
"""``NAME:PATH`` of the claim that pods mount at a path; see `ClusterSettings`."""
_ID = re.compile(r"[0-9a-f]{32}")
_FOLDERS = ("jobs", "runs", "models", "datasets", "servers", "services", "endpoints", "studies")


@dataclass(frozen=True)
class Workspace:
    """Existing workspace with a format this release can read.

    Args:
        root: Its folder on this machine; of a workspace in a bucket, the local copy.
        uri: Its location: an absolute path, or a URI.
        local_copy: Transfers to and from the bucket; None for a local folder, and for processes
            that leave transfers to others.
    """

    root: Path
    uri: str = ""
    local_copy: LocalCopy | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.uri:
            object.__setattr__(self, "uri", normalise(self.root))

    @property
    def is_remote(self) -> bool:
        """Whether the workspace is in a bucket."""
        return "://" in self.uri

    @property
    def deletion(self) -> Deletion:
        """Deletes in the workspace."""
        copy = self.local_copy
        return Deletion(self.root, None if copy is None else copy.store)

    def uri_of(self, uri: str) -> str:
        """Return the shared location of a path in the workspace, and others unchanged."""
        path = Path(uri)
        if self.is_remote and path.is_relative_to(self.root):
            return join(self.uri, *path.relative_to(self.root).parts)
        return uri

    def path_of(self, uri: str) -> Path:
        """Return the path of a location in the workspace, or of another local one.

        Raises:
            InputError: The location is remote, and not in the workspace.
        """
        below = normalise(uri).removeprefix(f"{self.uri}/")
        if self.is_remote and below != normalise(uri):
            if {"", ".", ".."} & set(below.split("/")):  # a record of the bucket names it
                raise InputError(f"the location {uri} leads out of the workspace")
            return self.root / below
        return local_path(uri)

    @property
    def jobs(self) -> Path:
        """Folder of job folders."""
        return self.root / "jobs"

    @property
    def runs(self) -> Path:
        """Folder of run records."""
        return self.root / "runs"

    @property
    def models(self) -> Path:
        """Model repository, in the layout of TensorFlow Serving."""
        return self.root / "models"

    @property
    def datasets(self) -> Path:
        """Folder of references to datasets."""
        return self.root / "datasets"

    @property
    def servers(self) -> Path:
        """Folder of documents of running servers."""
        return self.root / "servers"

    @property
    def services(self) -> Path:
        """Folder of service folders."""
        return self.root / "services"

    @property
    def endpoints(self) -> Path:
        """Folder of endpoints."""
        return self.root / "endpoints"

    @property
    def studies(self) -> Path:
        """Folder of studies."""
        return self.root / "studies"


def find_workspace(
    location: Workspace | str | os.PathLike[str] | None = None,
    *,
    create: bool = True,
    offline: bool = False,
) -> Workspace:
    """Find the workspace, or create it.

    Completes the deletions of killed processes there.

    The first that applies: ``location``; the environment variable ``TIMONEL_WORKSPACE``; the
    nearest folder ``.timonel`` from the current directory upwards; a new ``.timonel`` in the
    current directory.

    Args:
        location: A folder, or a URI such as ``s3://bucket/team``; a workspace is returned as it is.
        create: Create the workspace if there is none.
        offline: Of a workspace in a bucket, use the local copy without the bucket if there is one.
            For processes of a job, which must not depend on the network.

    Raises:
        NotFoundError: No workspace was found and ``create`` is false.
        FormatError: The workspace was written by a newer release.
        InputError: The workspace cannot be read or written; or none was named, and the nearest one
            belongs to another user or can be written by all.
    """
    if isinstance(location, Workspace):
        return location
    named = location or os.environ.get(ENVIRONMENT_VARIABLE)
    if named and not is_local(named):
        return _in_bucket(normalise(named), create=create, offline=offline)
    root = local_path(named) if named else _nearest_own(Path.cwd())
    if root is not None and (root / "FORMAT").exists():
        if "id" in read_document(root / "FORMAT", "workspace"):
            return _in_bucket(shared_uri(root), create=False, offline=offline)
        return _completed(Workspace(root))
    if not create and named:
        raise _missing(str(root))
    if not create:
        raise NotFoundError(
            f"no workspace at {Path.cwd()} or above",
            hint="run 'timonel convert' or 'timonel train' here first, or give --workspace",
        )
    root = root or Path.cwd() / FOLDER_NAME
    if is_on_claim(root):
        return _in_bucket(shared_uri(root), create=True, offline=offline)
    return _make(root)


def _completed(workspace: Workspace) -> Workspace:
    """Complete the deletions that killed processes have left."""
    workspace.deletion.resume()
    return workspace


def plan_workspace(location: str | os.PathLike[str] | None = None) -> Workspace:
    """Find the workspace like `find_workspace`, or return the one that it would create.

    Creates nothing. For a preview of what a first run would do.
    """
    try:
        return find_workspace(location, create=False)
    except NotFoundError:
        pass
    named = location or os.environ.get(ENVIRONMENT_VARIABLE)
    if named and not is_local(named):
        uri = normalise(named)
    else:
        root = local_path(named) if named else Path.cwd() / FOLDER_NAME
        if not is_on_claim(root):
            return Workspace(root)
        uri = shared_uri(root)
    from timonel.storage.local_copy import LocalCopy, copy_folder  # noqa: PLC0415
    from timonel.storage.object_store import ObjectStore  # noqa: PLC0415

    copy = copy_folder(uri, uuid.uuid4().hex)
    return Workspace(copy, uri, LocalCopy(ObjectStore(uri), copy))


def is_on_claim(path: Path) -> bool:
    """Return whether pods of the user's cluster see a path, by the setting of their claim."""
    claim = os.environ.get(CLAIM_VARIABLE)
    if not claim:
        return False
    name, _, mount = claim.partition(":")
    if not (name and mount.startswith("/") and mount.strip("/")):
        raise SpecError(
            f"{CLAIM_VARIABLE} must be NAME:/PATH, got '{claim}': it needs a name, and an absolute "
            "path other than '/'"
        )
    return path.is_relative_to(mount)


def _in_bucket(uri: str, *, create: bool, offline: bool) -> Workspace:
    # Most commands need no bucket.
    from timonel.storage.local_copy import LocalCopy, copy_folder, copy_folders  # noqa: PLC0415
    from timonel.storage.object_store import ObjectStore  # noqa: PLC0415

    # Of several workspaces that were at this URI, the bucket tells which it is.
    if offline and len(copies := copy_folders(uri)) == 1:
        return Workspace(copies[0], uri)
    store = ObjectStore(uri)
    try:
        content = store.read("FORMAT")
    except NotFoundError:
        if not create:
            raise _missing(uri) from None
        if (folder := shared_folder(uri)) is not None:
            _make_private(folder)
        content = (json.dumps(document("workspace", {"id": uuid.uuid4().hex})) + "\n").encode()
        try:
            store.create("FORMAT", content)
        except AlreadyExistsError:  # by another process just now
            content = store.read("FORMAT")
    body = parse_document(content.decode(errors="replace"), "workspace", f"{uri}/FORMAT")
    root = copy_folder(uri, _id_of(body, uri))
    path = root / "FORMAT"
    if not path.exists():
        _make_folders(root)
        root.chmod(0o700)  # downloaded documents may hold secrets
    if not path.exists() or path.read_bytes() != content:
        write_bytes(path, content)
    return _completed(Workspace(root, uri, LocalCopy(store, root)))


def _id_of(body: Mapping[str, Any], uri: str) -> str:
    found = str(body.get("id"))
    if not _ID.fullmatch(found):
        raise CorruptError(
            f"{uri}/FORMAT has no valid id",
            hint=f'add "id": "{uuid.uuid4().hex}" to that object',
        )
    return found


def _make_private(folder: Path) -> None:
    """Create the folder of a workspace, whose documents may hold secrets, for its user alone."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise unwritable(folder, error) from error


def _missing(place: str) -> NotFoundError:
    return NotFoundError(
        f"no workspace at {place}", hint=f"check --workspace or {ENVIRONMENT_VARIABLE}"
    )


def nearest_workspace(start: Path) -> Path | None:
    """Return the nearest ``.timonel`` from a folder upwards, or None."""
    start = start.absolute()
    for folder in (start, *start.parents):
        if (folder / FOLDER_NAME / "FORMAT").is_file():
            return folder / FOLDER_NAME
    return None


def _nearest_own(start: Path) -> Path | None:
    """Return the nearest workspace upwards; refuse one that another user could have prepared."""
    found = nearest_workspace(start)
    if found is not None:
        check_own(found, f"if you trust it, name it: --workspace {found}")
    return found


def _make(root: Path) -> Workspace:
    _make_folders(root)
    # The format is written last: a folder without it is not a workspace yet.
    write_document(root / "FORMAT", "workspace", {})
    return Workspace(root)


def _make_folders(root: Path) -> None:
    try:
        for name in _FOLDERS:
            (root / name).mkdir(parents=True, exist_ok=True)
        ignore = root / ".gitignore"
        if not ignore.exists():
            ignore.write_text("*\n")
    except OSError as error:
        raise unwritable(root, error) from error

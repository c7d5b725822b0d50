"""Workspace: the folder that holds everything timonel creates.

.timonel/
  FORMAT            the workspace document
  jobs/<job id>/    one folder per job, owned by its engine
  runs/<run id>/    one folder per run record
  models/<name>/<version>/
  datasets/         references to datasets by digest
  servers/          one document per running server
  services/<name>/  one folder per service, owned by its engine
  studies/<name>/   one folder per study of trials
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from timonel.errors import InputError, NotFoundError
from timonel.storage.atomic import unwritable
from timonel.storage.documents import read_document, write_document
from timonel.storage.uris import is_local, local_path

FOLDER_NAME = ".timonel"
ENVIRONMENT_VARIABLE = "TIMONEL_WORKSPACE"
_FOLDERS = ("jobs", "runs", "models", "datasets", "servers", "services", "studies")


@dataclass(frozen=True)
class Workspace:
    """Existing workspace with a format this release can read."""

    root: Path

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
    def studies(self) -> Path:
        """Folder of studies."""
        return self.root / "studies"


def find_workspace(
    location: str | os.PathLike[str] | None = None, *, create: bool = True
) -> Workspace:
    """Find the workspace, or create it.

    The first that applies: ``location``; the environment variable ``TIMONEL_WORKSPACE``; the
    nearest folder ``.timonel`` from the current directory upwards; a new ``.timonel`` in the
    current directory.

    Raises:
        NotFoundError: No workspace was found and ``create`` is false.
        FormatError: The workspace was written by a newer release.
        InputError: The workspace cannot be written, or is in a bucket, which no engine of this
            release supports.
    """
    named = location or os.environ.get(ENVIRONMENT_VARIABLE)
    root = _local_root(named) if named else nearest_workspace(Path.cwd())
    if root is not None and (root / "FORMAT").exists():
        read_document(root / "FORMAT", "workspace")
        return Workspace(root)
    if not create and named:
        raise NotFoundError(
            f"no workspace at {root}", hint=f"check --workspace or {ENVIRONMENT_VARIABLE}"
        )
    if not create:
        raise NotFoundError(
            f"no workspace at {Path.cwd()} or above",
            hint="run 'timonel convert' or 'timonel train' here first, or give --workspace",
        )
    return _make(root or Path.cwd() / FOLDER_NAME)


def _local_root(location: str | os.PathLike[str]) -> Path:
    if not is_local(location):
        raise InputError(
            f"the workspace must be a local folder, got {location}",
            hint="the local engine needs a folder on this machine",
        )
    return local_path(location)


def nearest_workspace(start: Path) -> Path | None:
    """Return the nearest ``.timonel`` from a folder upwards, or None."""
    start = start.absolute()
    for folder in (start, *start.parents):
        if (folder / FOLDER_NAME / "FORMAT").is_file():
            return folder / FOLDER_NAME
    return None


def _make(root: Path) -> Workspace:
    try:
        for name in _FOLDERS:
            (root / name).mkdir(parents=True, exist_ok=True)
        ignore = root / ".gitignore"
        if not ignore.exists():
            ignore.write_text("*\n")
    except OSError as error:
        raise unwritable(root, error) from error
    # The format is written last: a folder without it is not a workspace yet.
    write_document(root / "FORMAT", "workspace", {})
    return Workspace(root)

"""Model repository: numbered versions in the folder layout of TensorFlow Serving.

<root>/<name>/
  <number>/           a SavedModel, with assets.extra/timonel.json if timonel published it;
                      or a Python model, with model.py
  .highest            the highest number ever used, so that no number is reused
  .lock               held while publishing or deleting

A server that polls the folder takes every child with a numeric name for a version. All other files,
such as a version being written, therefore have non-numeric names.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from timonel._version import __version__
from timonel.errors import CorruptError, ModelError, NotFoundError, SpecError
from timonel.models.exports import (
    read_export,
    reference_of,
    saved_model_of,
    verify_saved_model,
)
from timonel.models.inspection import (
    PYTHON_MODEL_FILE,
    check_python_model,
    is_flatbuffer,
    is_python_model,
    is_saved_model,
)
from timonel.models.row_evidence import row_evidence
from timonel.models.runtime_choice import identity_of
from timonel.models.schema import (
    KEPT_REFERENCE,
    REFERENCE_FILE,
    VERSION_FILE,
    CheckResult,
    Export,
    VersionDocument,
)
from timonel.models.versions import (
    MODEL_NAME,
    VERSION_NUMBER,
    ModelVersion,
    check_name,
    numbered,
    open_version,
    unknown_model,
    version_at,
)
from timonel.storage import Workspace, exclusive, publish_dir, write_document, write_text
from timonel.storage.atomic import aside_name, sweep, sync, unwritable

if TYPE_CHECKING:
    from timonel.storage.local_copy import LocalCopy

Ignore = Callable[[Any, list[str]], Iterable[str]]

_HIGHEST = ".highest"
_LOCK = ".lock"
# Another publisher holds the lock while it copies: minutes for a large model on a slow disk.
_LOCK_TIMEOUT_S = 600.0


class ModelRepository:
    """Publish, list and delete versions below a local folder.

    Safe to use from several threads and processes at once. Reading never writes.

    Args:
        root: The folder.
        local_copy: Of a workspace in a bucket, transfers to and from it. A version is in the bucket
            before it is in the folder.
    """

    def __init__(self, root: Path, local_copy: LocalCopy | None = None) -> None:
        self.root = root
        self._local_copy = local_copy

    def names(self) -> list[str]:
        """Return the names of models with at least one version, sorted."""
        if self._local_copy is not None:
            self._local_copy.pull_models()
        if not self.root.is_dir():
            return []
        return sorted(
            folder.name
            for folder in self.root.iterdir()
            if MODEL_NAME.fullmatch(folder.name) and any(numbered(folder))
        )

    def versions(self, name: str) -> list[ModelVersion]:
        """Return a model's versions by ascending number; empty for unknown models."""
        folder = self._folder(name)
        self._pull(name)
        return [version_at(name, number, path) for number, path in sorted(numbered(folder))]

    def publish(
        self,
        name: str,
        export_folder: Path,
        provenance: Mapping[str, Any] | None = None,
        check: CheckResult | None = None,
        add: Callable[[Path], None] | None = None,
    ) -> ModelVersion:
        """Publish an export as the next version of a model, atomically.

        Args:
            name: The model's name.
            export_folder: The export folder of a job.
            provenance: The run, dataset and source of the model.
            check: The result of its check.
            add: Called with the version's folder before it is published, to add files to its
                ``assets.extra``.

        Raises:
            SpecError: The name is not a valid model name.
            NotFoundError: The folder holds no export.
            CorruptError: The export does not match its document.
            InputError: The repository cannot be written.
        """
        check_name(name)
        export = read_export(export_folder)
        with self._next_version(name) as (number, target):
            saved_model = saved_model_of(export_folder)
            _copy_tree(saved_model, target)
            body = VersionDocument(
                name=name,
                version=number,
                created_at=time.time(),
                digest=export.digest,
                export=export,
                provenance=dict(provenance or {}),
                check=check,
                rows=row_evidence(export, check, identity_of(target)),
                timonel=__version__,
            )
            # Verify the copy, not the source, so that the published files are the verified ones.
            verify_saved_model(saved_model, export.digest, copy=target)
            _copy_reference(export_folder, export, target)
            write_document(target / VERSION_FILE, "model-version", body.model_dump(mode="json"))
            if add is not None:
                add(target)
        path = self.root / name / str(number)
        return ModelVersion(name=name, number=number, path=path, document=body)

    def add(self, name: str, source: Path) -> ModelVersion:
        """Publish a folder's copy as the next version of a model, atomically.

        Args:
            name: The model's name.
            source: A SavedModel made elsewhere, or a Python or TensorFlow Lite model. No Python
                code of it is run.

        Raises:
            SpecError: The name is not a valid model name.
            ModelError: The folder is neither, or its Python cannot be parsed.
            InputError: The repository cannot be written.
        """
        check_name(name)
        if is_python_model(source):
            check_python_model(source)
        elif not is_saved_model(source) and not is_flatbuffer(source):
            raise ModelError(
                f"{source} holds neither a SavedModel nor a Python model",
                hint=f"name a folder with saved_model.pb or {PYTHON_MODEL_FILE}",
            )
        with self._next_version(name) as (number, target):
            _copy_tree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        return version_at(name, number, self.root / name / str(number))

    def delete(self, name: str, version: int) -> None:
        """Delete a version atomically; its number is never reused.

        Endpoints that use the version lose it: 'timonel models delete' refuses that.

        Raises:
            NotFoundError: The version does not exist.
            InputError: The repository cannot be written.
        """
        folder = self._folder(name)
        self.get(name, version)  # before a lock file is created for a model that does not exist
        with exclusive(folder / _LOCK, timeout_s=_LOCK_TIMEOUT_S):
            found = self.get(name, version)
            if self._local_copy is not None:
                self._local_copy.delete_folder(folder / str(version))
            write_text(folder / _HIGHEST, f"{_highest(folder)}\n")
            aside = folder / aside_name(str(version))
            try:
                found.path.rename(aside)
            except OSError as error:
                raise unwritable(found.path, error) from error
            sync(folder)
        shutil.rmtree(aside, ignore_errors=True)

    def get(self, name: str, version: int | None = None) -> ModelVersion:
        """Return a version of a model, by default the highest-numbered one.

        Raises:
            NotFoundError: There is no such model or version.
        """
        self._pull(name)
        found = dict(numbered(self._folder(name)))
        if not found:
            raise unknown_model(name, self.names(), Path(name))
        number = max(found) if version is None else version
        if number not in found:
            raise NotFoundError(
                f"{name} has no version {version}",
                hint=f"its versions are: {', '.join(str(each) for each in sorted(found))}",
            )
        return version_at(name, number, found[number])

    def resolve(self, ref: str | os.PathLike[str]) -> ModelVersion:
        """Resolve ``name``, ``name/number`` or a path to a version.

        A path is a version's folder, or a folder of numbered versions. A version outside a folder
        of numbered versions counts as version 1.

        Raises:
            NotFoundError: No version matches.
            SpecError: The part after ``name/`` is not a version number.
        """
        text = os.fspath(ref)
        name, slash, number = text.partition("/")
        if MODEL_NAME.fullmatch(name):
            self._pull(name)
        if MODEL_NAME.fullmatch(name) and any(numbered(self.root / name)):
            if slash and not VERSION_NUMBER.fullmatch(number):
                raise SpecError(f"expected {name}/<number>, got {text!r}")
            return self.get(name, int(number) if slash else None)
        path = Path(text).expanduser()
        found = open_version(path) if path.is_dir() else None
        if found is not None:
            return found
        is_name = MODEL_NAME.fullmatch(name) and (not slash or VERSION_NUMBER.fullmatch(number))
        if not is_name and (path.is_dir() or not MODEL_NAME.fullmatch(name)):
            raise NotFoundError(
                f"{text!r} is neither a model's name nor the folder of a SavedModel",
                hint="use name, name/number, or a folder with saved_model.pb",
            )
        raise unknown_model(name, self.names(), path)

    @contextlib.contextmanager
    def _next_version(self, name: str) -> Iterator[tuple[int, Path]]:
        """Yield the next number, and a folder that becomes the version if the block succeeds."""
        folder = self._folder(name)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritable(folder, error) from error
        with exclusive(folder / _LOCK, timeout_s=_LOCK_TIMEOUT_S):
            sweep(folder)
            number = _highest(folder) + 1
            if self._local_copy is not None:
                number = self._local_copy.reserve_number(name, number)
            # Once it is in the bucket, another process may have downloaded it.
            with publish_dir(folder / str(number), replace=self._local_copy is not None) as target:
                yield number, target
                if self._local_copy is not None:
                    self._local_copy.push_folder(target, folder / str(number))
            write_text(folder / _HIGHEST, f"{number}\n")

    def _pull(self, name: str) -> None:
        if self._local_copy is not None:
            self._local_copy.pull_models(name)

    def _folder(self, name: str) -> Path:
        check_name(name)
        return self.root / name


def workspace_models(workspace: Workspace) -> ModelRepository:
    """Return the repository of a workspace."""
    return ModelRepository(workspace.models, workspace.local_copy)


def _highest(folder: Path) -> int:
    numbers = [number for number, _ in numbered(folder)]
    mark = folder / _HIGHEST
    if mark.is_file():
        text = mark.read_text().strip()
        if not VERSION_NUMBER.fullmatch(text):
            raise CorruptError(
                f"{mark} does not hold a version number: {text[:40]!r}",
                hint="write the highest version number ever used for this model into the file",
            )
        numbers.append(int(text))
    return max(numbers, default=0)


def _copy_tree(source: Path, target: Path, ignore: Ignore | None = None) -> None:
    try:
        shutil.copytree(source, target, ignore=ignore, dirs_exist_ok=True)
    except shutil.Error as error:
        # shutil.Error lists each file that was not copied as "[Errno 28] Reason: 'a' -> 'b'".
        text = str(error.args[0][0][2])
        reason = text.partition(": '")[0].partition("] ")[2]
        raise unwritable(target, OSError(reason or text)) from error
    except OSError as error:
        raise unwritable(target, error) from error


def _copy_reference(export_folder: Path, export: Export, target: Path) -> None:
    """Copy the held-out predictions into the version, for later checks."""
    if reference_of(export_folder, export):
        path = target / KEPT_REFERENCE
        try:
            path.parent.mkdir(exist_ok=True)
            shutil.copyfile(export_folder / REFERENCE_FILE, path)
        except OSError as error:
            raise unwritable(path, error) from error

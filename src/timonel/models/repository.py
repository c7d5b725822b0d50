"""Model repository: numbered versions in the folder layout of TensorFlow Serving.

<root>/<name>/
  <number>/           a SavedModel, with assets.extra/timonel.json if timonel published it;
                      or a Python model, with model.py
  .aliases/           names of versions, see `timonel.storage.aliases`
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
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
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
    HolderComparison,
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
from timonel.storage import (
    Workspace,
    exclusive,
    find_workspace,
    join,
    publish_dir,
    write_document,
    write_text,
)
from timonel.storage.aliases import LATEST, AliasChange, Aliases, split_alias, version_named
from timonel.storage.atomic import sweep, unwritable
from timonel.storage.deletion import Deletion, Objects

if TYPE_CHECKING:
    from timonel.storage.local_copy import LocalCopy

Ignore = Callable[[Any, list[str]], Iterable[str]]

_HIGHEST = ".highest"
_LOCK = ".lock"
_ALIAS_LOCK = ".alias-lock"
# Another publisher holds the lock while it copies: minutes for a large model on a slow disk.
_LOCK_TIMEOUT_S = 600.0


class ModelRepository:
    """Publish, list and delete versions below a local folder.

    Safe to use from several threads and processes at once. Reading never writes.

    Args:
        root: The folder.
        local_copy: Of a workspace in a bucket, transfers to and from it. A version is in the bucket
            before it is in the folder.
        deletion: Deletes versions, and completes interrupted deletions of the workspace.
    """

    def __init__(
        self, root: Path, local_copy: LocalCopy | None = None, deletion: Deletion | None = None
    ) -> None:
        self.root = root
        self._local_copy = local_copy
        self._deletion = deletion or Deletion(root)

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
        aliases = self.aliases(name).read()
        return [
            version_at(name, number, path, aliases) for number, path in sorted(numbered(folder))
        ]

    def aliases(self, name: str) -> Aliases:
        """Return the aliases of a model, to read."""
        check_name(name)
        if self._local_copy is not None:
            return Aliases(join(self._local_copy.store.uri, "models", name))
        return Aliases(self.root / name)

    def alias(
        self,
        name: str,
        alias: str,
        version: int | str | None,
        *,
        reason: str | None = None,
        expected: Callable[[int | None], None] = lambda _version: None,
    ) -> AliasChange:
        """Give an alias to a version, or remove it; servers that follow it change over.

        Args:
            name: The model's name.
            alias: The alias, such as ``champion``.
            version: The version, or another alias that names it; None removes the alias.
            reason: Why, for the history.
            expected: Called with the present version of the alias before it moves; may raise.

        Raises:
            NotFoundError: There is no such model, version or alias.
            SpecError: The alias is invalid.
            InputError: The repository cannot be written.
        """
        self.get(name)
        aliases = self.aliases(name)
        if version is None:
            version_named(alias, aliases.read(), name)
            return aliases.move(alias, None, reason=reason, expected=expected)
        with exclusive(self._folder(name) / _ALIAS_LOCK):  # against its deletion
            number = version if isinstance(version, int) else self.get(name, version).number
            self.get(name, number)
            return aliases.move(alias, number, reason=reason, expected=expected)

    def publish(
        self,
        name: str,
        export_folder: Path,
        provenance: Mapping[str, Any] | None = None,
        check: CheckResult | None = None,
        add: Callable[[Path], None] | None = None,
        comparison: HolderComparison | None = None,
    ) -> ModelVersion:
        """Publish an export as the next version of a model, atomically.

        Args:
            name: The model's name.
            export_folder: The export folder of a job.
            provenance: The run, dataset and source of the model.
            check: The result of its check.
            add: Called with the version's folder before it is published, to add files to its
                ``assets.extra``.
            comparison: The comparison with the holder of an alias.

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
                comparison=comparison,
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

    def delete(self, name: str, *versions: int) -> None:
        """Delete versions, each atomically; their numbers are never reused.

        Endpoints that use a version lose it: `timonel.delete` keeps it.

        Raises:
            NotFoundError: A version does not exist.
            SpecError: A version has an alias.
            InputError: The repository cannot be written.
        """
        places = [self.place(name, version) for version in versions]
        with self.retiring(name, versions):
            paths = [path for path, _ in places]
            self._deletion.delete(paths, [each for _, found in places for each in found])

    def place(self, name: str, version: int) -> tuple[Path, tuple[Objects, ...]]:
        """Return a version's folder, and its objects in the bucket of the workspace.

        Raises:
            NotFoundError: There is no such version.
        """
        path = self._folder(name) / self.get(name, version).path.name
        if self._local_copy is None:
            return path, ()
        return path, (self._local_copy.objects(path),)

    @contextlib.contextmanager
    def retiring(self, name: str, versions: Collection[int]) -> Iterator[None]:
        """Hold the locks of a model while its versions are deleted.

        Raises:
            SpecError: A version has an alias.
            InputError: The repository cannot be written.
        """
        folder = self._folder(name)
        with (
            exclusive(folder / _LOCK, timeout_s=_LOCK_TIMEOUT_S),
            exclusive(folder / _ALIAS_LOCK),
        ):
            for alias, version in self.aliases(name).read().items():
                if version in versions:
                    raise SpecError(
                        f"{name}/{version} is {alias}",
                        hint=f"remove the alias: timonel models alias {name} {alias} --remove",
                    )
            write_text(folder / _HIGHEST, f"{_highest(folder)}\n")
            yield

    def get(self, name: str, version: int | str | None = None) -> ModelVersion:
        """Return a version of a model by number or alias, by default the highest-numbered one.

        Raises:
            NotFoundError: There is no such model or version.
        """
        self._pull(name)
        found = dict(numbered(self._folder(name)))
        if not found:
            raise unknown_model(name, self.names(), Path(name))
        aliases = self.aliases(name).read()
        number = max(found) if version in {None, LATEST} else version
        if isinstance(number, str):
            number = version_named(number, aliases, name)
        if number not in found:
            raise NotFoundError(
                f"{name} has no version {version}",
                hint=f"its versions are: {', '.join(str(each) for each in sorted(found))}",
            )
        return version_at(name, number, found[number], aliases)

    def resolve(self, ref: str | os.PathLike[str]) -> ModelVersion:
        """Resolve ``name``, ``name/number``, ``name@alias`` or a path to a version.

        A path is a version's folder, or a folder of numbered versions, also with an alias. A
        version outside a folder of numbered versions counts as version 1.

        Raises:
            NotFoundError: No version matches.
            SpecError: The part after ``name/`` is not a version number.
        """
        text, alias = split_alias(os.fspath(ref))
        name, slash, number = text.partition("/")
        if MODEL_NAME.fullmatch(name):
            self._pull(name)
        if MODEL_NAME.fullmatch(name) and any(numbered(self.root / name)):
            if slash and (alias or not VERSION_NUMBER.fullmatch(number)):
                raise SpecError(f"expected {name}/<number> or {name}@<alias>, got {ref!r}")
            return self.get(name, int(number) if slash else alias)
        path = Path(text).expanduser()
        found = open_version(path, alias) if path.is_dir() else None
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


def alias(
    name: str,
    alias: str,
    version: int | str | None = None,
    *,
    remove: bool = False,
    workspace: Workspace | str | os.PathLike[str] | None = None,
) -> AliasChange:
    """Give a version an alias; servers and endpoints of ``name@alias`` change over.

    Args:
        name: The model's name.
        alias: The alias, such as ``champion``.
        version: The version, or another alias that names it.
        remove: Remove the alias instead.
        workspace: The workspace, or its path.

    Raises:
        NotFoundError: There is no such model, version or alias.
        SpecError: The alias is invalid, or there is neither a version nor ``remove``.
        InputError: The repository cannot be written.
    """
    if remove == (version is not None):
        raise SpecError("give an alias, and either a version or remove")
    workspace = find_workspace(workspace, create=False)
    return workspace_models(workspace).alias(name, alias, version)


def workspace_models(workspace: Workspace) -> ModelRepository:
    """Return the repository of a workspace."""
    return ModelRepository(workspace.models, workspace.local_copy, workspace.deletion)


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

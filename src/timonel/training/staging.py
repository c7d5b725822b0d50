"""Copy datasets of this machine to the workspace's bucket, where tasks on other machines read them.

A copy has the dataset's digest as its name, so that a second job with the same dataset copies
nothing, and a copy that was interrupted continues.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from timonel.data import Dataset
from timonel.data.manifest import MANIFEST_NAME, parse_manifest
from timonel.errors import CorruptError
from timonel.storage import Workspace, is_local, join
from timonel.storage.digests import digest_file
from timonel.storage.object_store import ObjectStore, local_files
from timonel.training.request import TrainingRequest
from timonel.units import format_bytes

FOLDER = "staged"
_DIGITS = 32
_FILES_AT_ONCE = 16
_TELL_S = 10.0

_logger = logging.getLogger(__name__)


def with_copies(
    request: TrainingRequest, workspace: Workspace, sees: Callable[[Path], bool]
) -> TrainingRequest:
    """Return a request with the copies of its datasets that tasks see; copies nothing."""
    datasets = {
        name: replace(each, uri=_place(each, workspace), cached=each.path)
        if _is_hidden(each, workspace, sees)
        else each
        for name, each in request.datasets.items()
    }
    return replace(request, datasets=datasets)


def copy_datasets(
    request: TrainingRequest, workspace: Workspace, sees: Callable[[Path], bool]
) -> None:
    """Copy the datasets of a request to where `with_copies` says, as far as they are not there."""
    for dataset in request.datasets.values():
        if _is_hidden(dataset, workspace, sees):
            _copy(dataset, ObjectStore(_place(dataset, workspace)))


def _is_hidden(dataset: Dataset, workspace: Workspace, sees: Callable[[Path], bool]) -> bool:
    uri = workspace.uri_of(dataset.uri)
    return is_local(uri) and not sees(Path(uri))


def _place(dataset: Dataset, workspace: Workspace) -> str:
    digest = dataset.digest.rpartition(":")[2][:_DIGITS]
    return join(workspace.uri, FOLDER, digest)


def _copy(dataset: Dataset, store: ObjectStore) -> None:
    there = store.find()
    # The manifest says that the copy is complete.
    if MANIFEST_NAME in there:
        return
    files = {name: dataset.path / name for name in local_files(dataset.path)}
    manifest = files.pop(MANIFEST_NAME).read_bytes()
    known = parse_manifest(manifest.decode(errors="replace"), f"{dataset.path}/{MANIFEST_NAME}")
    if known.digest != dataset.digest:
        raise _changed(dataset, MANIFEST_NAME)
    digests = {file.name: file.digest for file in known.files}
    missing = [
        name
        for name, path in files.items()
        if name not in there or not store.is_same(name, path, there[name])
    ]
    _check(dataset, (name for name in digests if name not in missing), digests)
    total = sum(files[name].stat().st_size for name in missing)
    _logger.warning("copying %s of %s to %s, once", format_bytes(total), dataset.uri, store.uri)
    done, told_at = 0, time.monotonic()
    for start in range(0, len(missing), _FILES_AT_ONCE):
        names = missing[start : start + _FILES_AT_ONCE]
        store.upload({name: files[name] for name in names})
        # Afterwards: a file that changed while it was copied must not count as the dataset's.
        _check(dataset, (name for name in names if name in digests), digests)
        done += sum(files[name].stat().st_size for name in names)
        if time.monotonic() - told_at > _TELL_S:
            told_at = time.monotonic()
            _logger.warning("copied %s of %s", format_bytes(done), format_bytes(total))
    store.write(MANIFEST_NAME, manifest)


def _check(dataset: Dataset, names: Iterable[str], digests: Mapping[str, str]) -> None:
    """Check that files still have the content that the manifest lists."""
    for name in names:
        path = dataset.path / name
        if not path.is_file() or digest_file(path) != digests[name]:
            raise _changed(dataset, name)


def _changed(dataset: Dataset, name: str) -> CorruptError:
    return CorruptError(
        f"{dataset.path / name} was changed, and is no longer the file of the dataset's manifest",
        hint="convert the source again, and let nothing write there meanwhile",
    )

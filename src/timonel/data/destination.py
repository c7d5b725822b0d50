"""Destination of a conversion: checks, and publishing of the finished dataset."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from timonel.data.journal import Journal, journal_of
from timonel.data.manifest import MANIFEST_NAME, read_manifest
from timonel.data.remote import check_absent, publish_dataset
from timonel.errors import AlreadyExistsError, FormatError, InputError, TimonelError
from timonel.storage import is_local, read_document
from timonel.storage.atomic import install_dir, sweep, unwritable
from timonel.storage.locks import LockedError, exclusive

_logger = logging.getLogger(__name__)


@contextlib.contextmanager
def unfinished(uri: str, *, replace: bool) -> Iterator[Journal]:
    """Yield the journal of a conversion; publish its content if the block succeeds.

    If the block raises, the journal is kept if it has finished shards, or rejected records for the
    user to see.

    Args:
        uri: Where the dataset will be.
        replace: Replace a dataset there.

    Raises:
        LockedError: Another process converts to the same destination.
        InputError: The destination cannot be written.
    """
    if not is_local(uri):
        with publish_dataset(uri, replace=replace) as folder:
            journal = Journal(folder)
            yield journal
            journal.clear()
        return
    target = Path(uri)
    sweep(target.parent)
    journal = journal_of(target)
    with _locked(journal, target):
        try:
            yield journal
            install_dir(journal.content, target, replace=replace or target.exists())
        except BaseException:
            _keep_or_remove(journal)
            raise
        journal.remove()


@contextlib.contextmanager
def _locked(journal: Journal, target: Path) -> Iterator[None]:
    try:
        journal.root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(target, error) from error
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(exclusive(journal.lock, timeout_s=0))
        except LockedError:
            raise LockedError(
                f"another process converts to {target}", hint="wait for it, or stop it"
            ) from None
        yield


def _keep_or_remove(journal: Journal) -> None:
    if journal.has_finished():
        _logger.warning(
            "finished shards are kept in %s: run the same command again to continue", journal.root
        )
    elif not journal.rejected.exists():
        journal.remove()


def check_destination(uri: str, *, overwrite: bool) -> None:
    """Check that a dataset may be written to a folder or a bucket.

    Raises:
        InputError: The folder is inside another dataset, or the bucket cannot be read.
        AlreadyExistsError: Something is there, and ``overwrite`` is false or it is no dataset.
    """
    if is_local(uri):
        check_target(Path(uri), overwrite=overwrite)
    elif not overwrite:
        check_absent(uri)


def check_paths(source: object, destination: object) -> None:
    """Check that source and destination are paths with UTF-8 names.

    A source may also be a table in memory.

    Raises:
        InputError: The destination is not a path, or a name is not UTF-8.
    """
    if not isinstance(destination, str | os.PathLike):
        raise InputError(f"the destination must be a path, got {type(destination).__name__}")
    for what, path in (("source", source), ("destination", destination)):
        if not isinstance(path, str | os.PathLike):
            continue
        try:
            str(path).encode()
        except UnicodeEncodeError:
            shown = os.fsencode(path).decode(errors="backslashreplace")
            raise InputError(
                f"the name of the {what} {shown} is not UTF-8", hint="rename it"
            ) from None


def check_overlap(location: Path, target: Path) -> None:
    """Check that source and destination do not contain each other.

    Raises:
        InputError: One contains the other, or they are the same.
    """
    inner, outer = location.resolve(), target.resolve()
    if inner == outer or inner.is_relative_to(outer) or outer.is_relative_to(inner):
        raise InputError(
            f"source {location} and destination {target} overlap",
            hint="choose a destination outside the source",
        )


def check_target(target: Path, *, overwrite: bool) -> None:
    """Check that a dataset may be written to ``target``.

    Only a dataset or an empty folder may be replaced, so that a typo does not delete photographs.
    The target must not be inside another dataset, which may be replaced as a whole.

    Raises:
        InputError: The target is inside another dataset.
        AlreadyExistsError: The target has other content, or ``overwrite`` is false.
    """
    outer = _dataset_around(target)
    if outer is not None:
        raise InputError(
            f"the destination {target} is inside the dataset {outer}",
            hint="choose a folder outside it",
        )
    if not target.exists():
        return
    is_empty = target.is_dir() and not any(target.iterdir())
    if is_empty:
        return
    if not overwrite:
        raise AlreadyExistsError(
            f"{target} already exists", hint="choose another destination, or use --overwrite"
        )
    if (target / MANIFEST_NAME).is_file():
        foreign = sorted({path.name for path in target.iterdir()} - _own_files(target))
        if not foreign:
            return
        raise AlreadyExistsError(
            f"{target} cannot be overwritten: {foreign[0]} is not part of the dataset",
            hint="move it away, or choose another destination",
        )
    raise AlreadyExistsError(
        f"{target} cannot be overwritten: it is not a dataset",
        hint="choose another destination, or remove it yourself",
    )


def _dataset_around(target: Path) -> Path | None:
    """Return the nearest parent folder that is a dataset, or None."""
    for folder in target.resolve().parents:
        try:
            read_document(folder / MANIFEST_NAME, "dataset")
        except FormatError:
            return folder
        except TimonelError:
            continue  # no manifest, or a foreign file of that name
        else:
            return folder
    return None


def _own_files(folder: Path) -> set[str]:
    """Return the names of the files that belong to a dataset."""
    return {MANIFEST_NAME, *(file.name for file in read_manifest(folder).files)}

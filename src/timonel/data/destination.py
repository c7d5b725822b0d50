"""Destination of a conversion: checks, and publishing of the finished dataset."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from timonel.data.journal import locked
from timonel.data.manifest import MANIFEST_NAME, Manifest, read_manifest
from timonel.data.remote import check_absent, unpublished_dataset
from timonel.data.shards import ConversionJournal
from timonel.errors import AlreadyExistsError, FormatError, InputError, NotFoundError, TimonelError
from timonel.storage import digest_file, is_local, read_document
from timonel.storage.atomic import install_dir
from timonel.storage.digests import digest_bytes
from timonel.storage.object_store import ObjectStore
from timonel.storage.remote import publish as publish_folder


@contextlib.contextmanager
def unfinished(uri: str, *, overwrite: bool) -> Iterator[ConversionJournal]:
    """Yield the locked journal of a conversion, and remove it if the block succeeds.

    If the block raises, the journal is kept if it has finished shards, or rejected records for the
    user to see.
    """
    if is_local(uri):
        target = Path(uri)
        journal = ConversionJournal.beside(target)
        check_destination(uri, journal, overwrite=overwrite)
        with locked(journal, target):
            # Again, as another process may have published meanwhile.
            check_destination(uri, journal, overwrite=overwrite)
            yield journal
        return
    with unpublished_dataset(uri) as folder:
        journal = ConversionJournal(folder)
        check_destination(uri, journal, overwrite=overwrite)
        yield journal


def check_destination(uri: str, journal: ConversionJournal, *, overwrite: bool) -> None:
    """Check that a dataset may be written to a folder or a bucket.

    The dataset of the journal may be there: its run was stopped after it published the dataset.
    """
    if published(uri, journal) is not None:
        return
    if is_local(uri):
        check_target(Path(uri), overwrite=overwrite)
    elif not overwrite:
        check_absent(uri)


def published(uri: str, journal: ConversionJournal) -> Manifest | None:
    """Return the manifest at the destination if it is that of the journal's dataset."""
    if journal.output is not None:
        with contextlib.suppress(NotFoundError):
            content = ObjectStore(uri).read(MANIFEST_NAME)
            if journal.output == digest_bytes(content):
                return read_manifest(Path(uri) if is_local(uri) else journal.content)
    return None


def publish(uri: str, journal: ConversionJournal, run_id: str, *, replace: bool) -> None:
    """Publish the content of a journal as the dataset of a run."""
    journal.publishing(run_id, digest_file(journal.content / MANIFEST_NAME))
    if is_local(uri):
        target = Path(uri)
        check_target(target, overwrite=replace)
        install_dir(journal.content, target, replace=replace)
    else:
        publish_folder(journal.content, uri, last=MANIFEST_NAME, replace=replace)


def check_paths(source: object, destination: object) -> None:
    """Check that source and destination are paths with UTF-8 names.

    A source may also be a table in memory.
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


def follow_link(uri: str) -> str:
    """Return where a destination that is a symbolic link leads; others are unchanged."""
    is_link = is_local(uri) and Path(uri).is_symlink()
    return str(Path(uri).resolve()) if is_link else uri


def check_overlap(location: Path, target: Path) -> None:
    """Check that source and destination do not contain each other."""
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

"""Where a conversion may read from and write to."""

from __future__ import annotations

import os
from pathlib import Path

from timonel.data.manifest import MANIFEST_NAME, read_manifest
from timonel.errors import AlreadyExistsError, FormatError, InputError, TimonelError
from timonel.storage import read_document
from timonel.storage.atomic import exists


def check_paths(source: object, destination: object) -> None:
    """Check that source and destination are paths with names in UTF-8.

    Raises:
        InputError: One is something else, such as a DataFrame.
    """
    for what, path in (("source", source), ("destination", destination)):
        if hasattr(path, "to_csv"):
            raise InputError(
                f"expected the path of a file or folder as {what}, got a {type(path).__name__}",
                hint='save it with to_csv("rows.csv", index=False) and convert "rows.csv"',
            )
        if not isinstance(path, str | os.PathLike):
            raise InputError(f"expected a path as {what}, got {type(path).__name__}")
        try:
            str(path).encode()
        except UnicodeEncodeError:
            shown = os.fsencode(path).decode(errors="backslashreplace")
            raise InputError(
                f"the name of the {what} {shown} is not UTF-8", hint="rename it"
            ) from None


def check_places(location: Path, target: Path) -> None:
    """Check that neither place lies inside the other.

    Raises:
        InputError: One does.
    """
    inner, outer = location.resolve(), target.resolve()
    if inner == outer or inner.is_relative_to(outer) or outer.is_relative_to(inner):
        raise InputError(
            f"expected source and destination apart from each other, got {location} and {target}",
            hint="choose a destination outside the source",
        )


def check_target(target: Path, *, overwrite: bool) -> None:
    """Check that a dataset may be put at ``target``.

    Only a dataset or an empty folder may be replaced: nobody loses photographs to a typo. Nor may
    it lie inside another dataset, with which it would be moved and removed.

    Raises:
        InputError: It would be inside another dataset.
        AlreadyExistsError: Something else is there, or ``overwrite`` is false.
    """
    outer = _dataset_around(target)
    if outer is not None:
        raise InputError(
            f"expected a destination outside of other datasets, got {target} inside of {outer}",
            hint="choose a folder beside it",
        )
    if not target.exists():
        return
    is_empty = target.is_dir() and not any(target.iterdir())
    if is_empty:
        return
    if not overwrite:
        raise exists(target)
    if (target / MANIFEST_NAME).is_file():
        foreign = sorted({path.name for path in target.iterdir()} - _own_files(target))
        if not foreign:
            return
        raise AlreadyExistsError(
            f"expected nothing but a dataset to overwrite at {target}, found {foreign[0]} as well",
            hint="move it away, or choose another place",
        )
    raise AlreadyExistsError(
        f"expected a dataset to overwrite at {target}, found something else",
        hint="choose another place, or remove it yourself",
    )


def _dataset_around(target: Path) -> Path | None:
    """Return the folder above ``target`` that is a dataset, if there is one."""
    for folder in target.resolve().parents:
        try:
            read_document(folder / MANIFEST_NAME, "dataset")
        except FormatError:
            return folder
        except TimonelError:
            continue  # none, or a file of that name that others have made
        else:
            return folder
    return None


def _own_files(folder: Path) -> set[str]:
    """Return the names of the files that a dataset's folder is made of."""
    manifest = read_manifest(folder)
    return {MANIFEST_NAME, *(shard.name for shard in manifest.shards)}

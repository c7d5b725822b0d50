"""Check the source and destination paths of a conversion."""

from __future__ import annotations

import os
from pathlib import Path

from timonel.data.manifest import MANIFEST_NAME, read_manifest
from timonel.errors import AlreadyExistsError, FormatError, InputError, TimonelError
from timonel.storage import read_document
from timonel.storage.atomic import exists


def check_paths(source: object, destination: object) -> None:
    """Check that source and destination are paths with UTF-8 names.

    Raises:
        InputError: One is not a path, such as a DataFrame, or its name is not UTF-8.
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
    """Check that source and destination do not contain each other.

    Raises:
        InputError: One contains the other, or they are the same.
    """
    inner, outer = location.resolve(), target.resolve()
    if inner == outer or inner.is_relative_to(outer) or outer.is_relative_to(inner):
        raise InputError(
            f"expected source and destination apart from each other, got {location} and {target}",
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
    manifest = read_manifest(folder)
    return {MANIFEST_NAME, *(shard.name for shard in manifest.shards)}

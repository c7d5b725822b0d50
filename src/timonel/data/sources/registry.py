"""Registry of installed sources, and selection by location."""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path

from timonel.data.sources.base import Source
from timonel.errors import InputError, NotFoundError, SpecError

GROUP = "timonel.sources"


def installed_sources() -> dict[str, type[Source]]:
    """Return the classes of all installed sources by plug-in name, sorted."""
    found = sorted(entry_points(group=GROUP), key=lambda point: point.name)
    return {point.name: point.load() for point in found}


def choose_source(location: Path, kind: str = "auto") -> type[Source]:
    """Return the source class for ``location``.

    Args:
        location: The folder or file.
        kind: ``images``, ``table``, a plug-in's name, or ``auto`` for the one with the highest
            precedence that recognises the location.

    Raises:
        NotFoundError: ``location`` does not exist.
        SpecError: No installed source has that kind.
        InputError: No installed source recognises the location.
    """
    if not location.exists():
        raise NotFoundError(
            f"expected a folder of images or a CSV file at {location}, found nothing",
            hint="check the path",
        )
    sources = installed_sources()
    if kind != "auto":
        sources = {name: source for name, source in sources.items() if kind in {name, source.kind}}
        if not sources:
            known = sorted({source.kind for source in installed_sources().values()})
            raise SpecError(
                f"expected a kind of source among auto, {', '.join(known)}, got {kind!r}"
            )
    for source in sorted(sources.values(), key=lambda each: -each.precedence):
        if source.recognises(location):
            return source
    wanted = "a source" if kind == "auto" else f"a source of kind {kind}"
    what = "a folder" if location.is_dir() else "a file"
    raise InputError(
        f"expected {wanted} at {location}, got {what} that no installed source reads",
        hint="give a folder with one folder of images per label, or a .csv file",
    )

"""timonel's own dependencies, for requirements files that name timonel.

The image gets timonel as it is installed here, so the line is never looked up in a package index;
only the dependencies of the named extras are installed.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from timonel._version import __version__
from timonel.containers.credentials import without_user
from timonel.containers.requirements_files import RequirementsFile
from timonel.errors import SpecError

_OWN = "timonel"
# A name before a separator of paths is a folder, or a file.
_NAME = re.compile(r"([a-z0-9](?:[a-z0-9._-]*[a-z0-9])?)(?![/\\:a-z0-9._-])", re.IGNORECASE)
_OPTION = re.compile(r"\s--([a-z-]+)")
_VARIANT = "tensorflow-cpu"
_EXTRA = re.compile(r"""\bextra\s*==\s*["']([^"']+)["']""")
_NEVER = 'python_version < "0"'


@dataclass(frozen=True)
class OwnRequirements:
    """What uv installs beside a requirements file that names timonel.

    Attributes:
        added: Requirements.
        overrides: Replace all requirements of the same packages.
    """

    added: tuple[str, ...]
    overrides: tuple[str, ...]

    @classmethod
    def of(cls, files: Collection[RequirementsFile]) -> Self | None:
        """Return those of a requirements file; None if it does not require timonel.

        Args:
            files: The file and all that it includes.
        """
        required = [each for each in files if not each.is_constraints]
        own = _named(required)
        if not own:
            return None
        for each, path in (*own, *_named(each for each in files if each.is_constraints)):
            _check(each, path)
        extras = {canonicalize_name(extra) for each, _ in own for extra in each.extras}
        names = {_name(line) for each in required for line in each.lines}
        # Both packages have the same files.
        skipped = (_OWN, "tensorflow") if _VARIANT in names else (_OWN,)
        return cls(tuple(_dependencies(extras)), tuple(f"{each}; {_NEVER}" for each in skipped))


def _named(files: Iterable[RequirementsFile]) -> list[tuple[Requirement, Path]]:
    """Return the requirements of timonel whose markers apply, each with the file's path."""
    found = [
        (_parse(line, file.path), file.path)
        for file in files
        for line in file.lines
        if _name(line) == _OWN
    ]
    return [(each, path) for each, path in found if each.marker is None or each.marker.evaluate()]


def _name(line: str) -> str | None:
    match = _NAME.match(line)
    return None if match is None else canonicalize_name(match[1])


def _parse(line: str, path: Path) -> Requirement:
    text, *options = _OPTION.split(line)
    if "hash" in options:
        raise SpecError(
            f"{path} requires a hash of timonel, but the image gets the installed timonel",
            hint="remove the hashes from its line",
        )
    try:
        return Requirement(text)
    except InvalidRequirement as error:
        reason = str(error).partition("\n")[0]
        raise SpecError(
            without_user(f"{path} has an invalid requirement, '{text}': {reason}")
        ) from error


def _check(requirement: Requirement, path: Path) -> None:
    """Check that the installed timonel meets a requirement."""
    if not requirement.specifier.contains(__version__, prereleases=True):
        raise SpecError(
            f"{path} requires timonel{requirement.specifier}, but the image gets the installed "
            f"timonel {__version__}",
            hint="install the required version here, or change the file",
        )
    extras = {canonicalize_name(each) for each in requirement.extras}
    known = {canonicalize_name(extra) for _, extra in _declared() if extra}
    if unknown := sorted(extras - known):
        raise SpecError(
            f"{path}: timonel has no extra {', '.join(unknown)}",
            hint=f"its extras are {', '.join(sorted(known))}",
        )


def _dependencies(extras: Collection[str]) -> Iterator[str]:
    for requirement, extra in _declared():
        if not extra:
            yield requirement
        elif canonicalize_name(extra) in extras:
            yield requirement.partition(";")[0].strip()


def _declared() -> Iterator[tuple[str, str]]:
    """Yield timonel's requirements, each with its extra; without one, that is empty."""
    for each in importlib.metadata.requires(_OWN) or ():
        extra = _EXTRA.search(each.partition(";")[2])
        yield each, "" if extra is None else extra[1]

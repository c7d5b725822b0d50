"""Read requirements files with all files that they include, as pip and uv do."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from timonel.errors import NotFoundError, SpecError

_INCLUDED = re.compile(r"(?:-([rc])|--(requirement|constraint)(?=[ \t=]))[ \t]*=?[ \t]*(.+)")
_COMMENT_LINE = re.compile(r"^[ \t]*#.*$", re.MULTILINE)
_COMMENT = re.compile(r"\s#.*")


@dataclass(frozen=True)
class RequirementsFile:
    """A file of requirements, or of constraints, which limit versions and require nothing."""

    path: Path
    text: str
    is_constraints: bool = False

    @property
    def lines(self) -> list[str]:
        """Requirements and options, without comments; each is one line."""
        # A comment does not continue on the next line.
        joined = _COMMENT_LINE.sub("", self.text).replace("\\\n", " ")
        lines = (_COMMENT.sub("", line).strip() for line in joined.splitlines())
        return [line for line in lines if line]


def read_requirements(requirements: Path) -> tuple[RequirementsFile, ...]:
    """Return a requirements file and all files that it includes.

    A file that is included both as requirements and as constraints is returned twice.

    Raises:
        NotFoundError: An included file does not exist.
        SpecError: It includes a URL, whose content may change.
    """
    found: dict[tuple[Path, bool], RequirementsFile] = {}
    _read_included(requirements.resolve(), found, is_constraints=False)
    return tuple(found.values())


def _read_included(
    path: Path, found: dict[tuple[Path, bool], RequirementsFile], *, is_constraints: bool
) -> None:
    if (path, is_constraints) in found:
        return
    if not path.is_file():
        raise NotFoundError(f"no file at {path}", hint="a requirements file includes it")
    file = RequirementsFile(
        path, path.read_text(encoding="utf-8-sig", errors="replace"), is_constraints
    )
    found[path, is_constraints] = file
    for line in file.lines:
        if (match := _INCLUDED.fullmatch(line)) is None:
            continue
        included = _unquoted(match[3])
        if "://" in included:
            raise SpecError(f"{path} includes {included}", hint="download it, and include the file")
        _read_included(
            (path.parent / included).resolve(),
            found,
            is_constraints=is_constraints or (match[1] or match[2]).startswith("c"),
        )


def _unquoted(name: str) -> str:
    try:
        return " ".join(shlex.split(name))
    except ValueError:  # such as a name with an apostrophe
        return name

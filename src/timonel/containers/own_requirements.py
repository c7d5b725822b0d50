"""timonel's own dependencies, for requirements files that name timonel.

The image gets timonel as it is installed here, so the line is never looked up in a package index;
only the dependencies of the named extras are installed.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Self

_NAMED = re.compile(
    r"^[ \t]*timonel[ \t]*(?:\[([^\]\n]*)\])?[ \t]*(?=[;@=<>!~#\\]|$)", re.MULTILINE
)
_VARIANT = re.compile(r"^[ \t]*tensorflow-cpu\b", re.MULTILINE)
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
    def of(cls, text: str) -> Self | None:
        """Return those of a requirements file; None if it does not name timonel.

        Args:
            text: Content of the file and of all that it includes.
        """
        named = _NAMED.findall(text)
        if not named:
            return None
        extras = {extra.strip() for each in named for extra in each.split(",")}
        # Both packages have the same files.
        skipped = ("timonel", "tensorflow") if _VARIANT.search(text) else ("timonel",)
        return cls(tuple(_dependencies(extras)), tuple(f"{each}; {_NEVER}" for each in skipped))


def _dependencies(extras: Collection[str]) -> Iterator[str]:
    for each in importlib.metadata.requires("timonel") or ():
        requirement, _, marker = each.partition(";")
        extra = _EXTRA.search(marker)
        if extra is None:
            yield each
        elif extra[1] in extras:
            yield requirement.strip()

"""Find the Python program in a container's command."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from timonel.errors import SpecError

_PYTHON = re.compile(r"(.*/)?python(3(\.\d+)?)?\Z")
_SHELL = re.compile(r"(/bin/|/usr/bin/)?(ba|da)?sh\Z")
_SHELL_SYNTAX = re.compile(r"[;&|<>`$\n*?(){}]")
_SHELL_FLAGS = frozenset({"-c", "-ec", "-lc", "-exc", "-xc"})
_IGNORED_FLAGS = frozenset({"-u", "-B", "-O"})
_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_.-][A-Za-z0-9_.-]*)\)")


@dataclass(frozen=True)
class ProgramCommand:
    """A Python program and its arguments."""

    kind: Literal["script", "module"]
    name: str  # of the module, or path of the script in the container
    args: tuple[str, ...] = ()


def parse_command(command: Sequence[str], where: str) -> ProgramCommand:
    """Parse ``python SCRIPT ARGS`` or ``python -m MODULE ARGS``, also within ``sh -c``."""
    words = without_shell(list(command))
    if not words:
        raise SpecError(
            f"{where} has no command, and timonel does not read that of the image", hint=_CURE
        )
    if not _PYTHON.match(words[0]):
        raise SpecError(f"{where} does not run Python, but {shlex.join(command)!r}", hint=_CURE)
    rest = words[1:]
    while rest and rest[0] in _IGNORED_FLAGS:
        rest = rest[1:]
    if len(rest) > 1 and rest[0] == "-m":
        return ProgramCommand("module", rest[1], tuple(rest[2:]))
    if not rest or rest[0].startswith("-"):
        raise SpecError(f"{where} runs no script or module: {shlex.join(command)!r}", hint=_CURE)
    return ProgramCommand("script", rest[0], tuple(rest[1:]))


_CURE = "name the script as well: timonel train SCRIPT -f FILE -- ARGS"


def without_shell(words: list[str]) -> list[str]:
    """Return the command that a shell is given, if it is simple enough."""
    if len(words) != 3 or not _SHELL.match(words[0]) or words[1] not in _SHELL_FLAGS:
        return words
    if _SHELL_SYNTAX.search(words[2]):
        return words
    try:
        inner = shlex.split(words[2])
    except ValueError:
        return words
    return inner[1:] if inner[:1] == ["exec"] else inner


def expand(text: str, env: Mapping[str, str]) -> str:
    """Replace ``$(NAME)`` by variables of the container, as Kubernetes does.

    ``$$(NAME)`` gives ``$(NAME)``, and unknown names are left alone.
    """

    def value(found: re.Match[str]) -> str:
        name = found.group(1)
        return "$" if name is None else env.get(name, found.group())

    return _REFERENCE.sub(value, text)

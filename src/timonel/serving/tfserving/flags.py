"""Parse command-line flags in TensorFlow's way. Pure.

A flag is ``--name=value``; a boolean also ``--name`` alone. Unknown arguments are collected and do
not stop the program; a known flag with an invalid value does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Value = bool | int | float | str
Kind = Literal["bool", "int32", "int64", "float", "string"]

_INTEGER = re.compile(r"\s*[+-]?[0-9]+", re.ASCII)
_FLOAT = re.compile(r"\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", re.ASCII)
_BITS = {"int32": 32, "int64": 64}
_BOOLEANS = {"": True, "=true": True, "=false": False}


@dataclass(frozen=True)
class Flag:
    """A known flag.

    Args:
        name: Its name, without dashes.
        kind: The type of its value.
        default: Its default value.
        help: Its line in the usage.
    """

    name: str
    kind: Kind
    default: Value
    help: str


@dataclass(frozen=True)
class Parsed:
    """A parsed command line.

    Args:
        values: The value of every flag, given or default.
        given: The names of the flags given.
        left_over: Arguments that are not known flags, in order.
        refusals: Messages for invalid values.
    """

    values: Mapping[str, Value]
    given: frozenset[str]
    left_over: tuple[str, ...]
    refusals: tuple[str, ...]

    @property
    def wants_usage(self) -> bool:
        """Whether the program prints its usage and exits."""
        return bool(self.refusals) or self.left_over[:1] == ("--help",)


def parse(arguments: Sequence[str], flags: Sequence[Flag]) -> Parsed:
    """Parse a command line.

    Args:
        arguments: The arguments after the program's name.
        flags: The known flags.
    """
    known = {flag.name: flag for flag in flags}
    values: dict[str, Value] = {flag.name: flag.default for flag in flags}
    given: set[str] = set()
    left_over: list[str] = []
    refusals: list[str] = []
    for position, argument in enumerate(arguments):
        if argument == "--":
            left_over += arguments[position:]
            break
        name, equals, text = argument.removeprefix("--").partition("=")
        flag = known.get(name) if argument.startswith("--") else None
        if flag is None or not (equals or flag.kind == "bool"):
            left_over.append(argument)
            continue
        value = _read(flag, equals + text if flag.kind == "bool" else text)
        if value is None:
            shown = equals + text if flag.kind == "bool" else text
            refusals.append(f"Couldn't interpret value {shown} for flag {name}.")
            continue
        values[name] = value
        given.add(name)
    return Parsed(values, frozenset(given), tuple(left_over), tuple(refusals))


def usage(program: str, flags: Sequence[Flag]) -> str:
    """Return the usage text: all flags with their defaults."""
    lines = [f"usage: {program}", "Flags:"]
    lines += [
        f"\t{f'--{flag.name}={_shown(flag)}':<33}\t{flag.kind}\t{flag.help}" for flag in flags
    ]
    return "\n".join(lines) + "\n"


def _read(flag: Flag, text: str) -> Value | None:
    if flag.kind == "bool":
        return _BOOLEANS.get(text)
    if flag.kind == "string":
        return text
    if flag.kind == "float":
        return float(text) if _FLOAT.fullmatch(text) else None
    if not _INTEGER.fullmatch(text):
        return None
    number, half = int(text), 1 << (_BITS[flag.kind] - 1)
    return number if -half <= number < half else None


def _shown(flag: Flag) -> str:
    if isinstance(flag.default, bool):
        return "true" if flag.default else "false"
    if isinstance(flag.default, str):
        return f'"{flag.default}"'
    return f"{flag.default:f}" if isinstance(flag.default, float) else str(flag.default)

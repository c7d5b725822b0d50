"""Options of `train` and `serve`, stated once for Python, the command line and the reference.

The options of a function are the keys of a ``TypedDict``, each annotated with its type and an
`Option`. The function takes them as keywords (``**options: Unpack[...]``). This module and those
of the options import nothing slow: the command line's help needs them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast, get_type_hints

_Options = TypeVar("_Options")
_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Option:
    """Default and description of an option.

    Attributes:
        default: The default.
        text: Description; the command line's help shows its first sentence.
        panel: Section of the command line's help.
        computed: The default in words, if the function computes it.
        metavar: Form of the value in the command line's help.
        flag: Name on the command line, if it is not the option's.
        least: Smallest number that the command line accepts.
        setting: Dotted name of the setting that the option sets, if it sets one unchanged.
    """

    default: Any
    text: str
    panel: str
    computed: str | None = None
    metavar: str | None = None
    flag: str | None = None
    least: int | None = None
    setting: str | None = None

    @property
    def summary(self) -> str:
        """First sentence of the description."""
        first, stop, _ = self.text.partition(". ")
        return first + stop.strip()


def options_of(kind: type) -> dict[str, tuple[Any, Option]]:
    """Return the type and description of each option of a ``TypedDict``."""
    hints = get_type_hints(kind, include_extras=True)
    return {name: (hint.__origin__, hint.__metadata__[0]) for name, hint in hints.items()}


def flag_of(name: str, option: Option) -> str:
    """Return the name of an option on the command line."""
    return option.flag or f"--{name.replace('_', '-')}"


def with_defaults(kind: type[_Options], given: _Options) -> _Options:
    """Return options with the defaults of those that were not given."""
    known = {name: option.default for name, (_, option) in options_of(kind).items()}
    values = cast("dict[str, Any]", given)
    for name in values:
        if name not in known:
            raise TypeError(f"unexpected keyword argument {name!r}")
    return cast("_Options", {**known, **values})


def documented(kind: type) -> Callable[[_Function], _Function]:
    """Return a decorator that adds the options to a function's signature and docstring."""

    def add(function: _Function) -> _Function:
        signature = inspect.signature(function)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        found = options_of(kind)
        added = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=option.default, annotation=annotation
            )
            for name, (annotation, option) in found.items()
        ]
        function.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[*own, *added]
        )
        lines = [f"    {name}: {option.text}" for name, (_, option) in found.items()]
        function.__doc__ = "\n".join([inspect.getdoc(function) or "", "", "Options:", *lines])
        return function

    return add

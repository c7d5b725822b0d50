"""Checks of arguments by the annotations of a function."""

from __future__ import annotations

import difflib
import functools
import inspect
import math
import numbers
import os
import reprlib
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from timonel.errors import SpecError, did_you_mean

_P = ParamSpec("_P")
_R = TypeVar("_R")
_NUMBERS = {int: numbers.Integral, float: numbers.Real}
_WORDS = {
    bool: "True or False",
    int: "a whole number",
    float: "a finite number",
    str: "text",
    types.NoneType: "None",
    tuple: "two whole numbers",
    os.PathLike: "a path",
    Sequence: "a list",
    Mapping: "a dict",
    Callable: "a function",
}


def checked(unknown: str = "") -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Return a decorator that checks the names and types of a function's arguments.

    The function raises SpecError for them, before anything else. Protocols are not checked.

    Args:
        unknown: Cure for an argument that does not exist and resembles none, with ``{name}`` and
            ``{value}``.
    """

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        signature = inspect.signature(function)
        annotations: dict[str, Any] = {}  # evaluated on demand: that takes time
        help_ = f"see help({function.__name__})"

        @functools.wraps(function)
        def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            for name, value in kwargs.items():
                if name not in signature.parameters:
                    cure = unknown.format(name=name, value=reprlib.repr(value)) or help_
                    raise SpecError(
                        f"{function.__name__}() has no argument {name!r}",
                        hint=did_you_mean(name, signature.parameters) or cure,
                    )
            try:
                given = signature.bind(*args, **kwargs).arguments
            except TypeError as error:
                raise SpecError(f"{function.__name__}(): {error}", hint=help_) from None
            annotations.update(annotations or _annotations(function, signature))
            for name, value in given.items():
                if not _fits(value, annotations.get(name, Any)):
                    words = " or ".join(_words(annotations[name]))
                    raise SpecError(
                        f"expected {name}= as {words}, got {reprlib.repr(value)}",
                        hint=_cure(value, annotations[name]) or help_,
                    )
            return function(*args, **kwargs)

        return call

    return decorate


def _annotations(function: Callable[..., Any], signature: inspect.Signature) -> dict[str, Any]:
    """Return the types of the arguments, also of the options that `documented` has added."""
    added = {
        name: parameter.annotation
        for name, parameter in signature.parameters.items()
        if not isinstance(parameter.annotation, str) and parameter.annotation is not parameter.empty
    }
    return {**added, **get_type_hints(function)}


def _fits(value: Any, expected: Any) -> bool:
    origin, inner = get_origin(expected), get_args(expected)
    if origin in {Union, types.UnionType}:
        fits = any(_fits(value, each) for each in inner)
    elif origin is Literal:
        fits = any(type(value) is type(each) and value == each for each in inner)
    elif origin in {tuple, Sequence}:
        fits = isinstance(value, tuple | list) and all(_fits(each, inner[0]) for each in value)
        fits &= origin is Sequence or (fits and len(value) == len(inner))
    elif expected in _NUMBERS:  # NumPy's as well
        fits = isinstance(value, _NUMBERS[expected]) and not isinstance(value, bool)
        fits = fits and math.isfinite(value)
    else:
        is_checked = expected is not Any and not getattr(expected, "_is_protocol", False)
        fits = not is_checked or isinstance(value, origin or expected)
    return fits


def _words(expected: Any) -> list[str]:
    origin, inner = get_origin(expected), get_args(expected)
    if origin in {Union, types.UnionType}:
        return [word for each in inner for word in _words(each)]
    if origin is Literal:
        return [repr(each) for each in inner]
    kind = origin or expected
    return [_WORDS.get(kind, f"a {kind.__name__}")]


def _cure(value: Any, expected: Any) -> str | None:
    """Return a correction of a value, if one is likely."""
    if isinstance(value, str):
        close = difflib.get_close_matches(repr(value), _words(expected), n=1, cutoff=0.7)
        return f"did you mean {close[0]}?" if close else None
    is_side = tuple[int, int] in get_args(expected) and _fits(value, int)
    return f"use ({value}, {value})" if is_side else None

"""Text form of search spaces: the values of ``--param``.

    lr=log(1e-4,1e-1)             double on a log scale
    x=float(0,1)                  double
    beta=reverse-log(0.9,0.999)   double with the resolution near its maximum
    units=int(32,256)             integer; int(32,256,log) on a log scale
    act=choice(relu,tanh)         categorical
    batch=values(16,32,64)        discrete; values(16,32,64,log) on a log scale
    epochs=3                      fixed value
    momentum=float(0,1) if optimizer=sgd|nesterov

Texts that contain spaces or any of ``,|()="`` are written as JSON strings: ``choice("a b",c)``.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import get_args

from timonel.errors import SpecError
from timonel.tuning.parameters import Parameter, Scale, Value
from timonel.tuning.space import SearchSpace

_EXAMPLES = {
    "float": "float(0,1)",
    "log": "log(1e-4,1e-1)",
    "reverse-log": "reverse-log(0.9,0.999)",
    "int": "int(32,256)",
    "choice": "choice(relu,tanh)",
    "values": "values(16,32,64)",
}
_SYNONYMS = {
    "double": "float",
    "uniform": "float",
    "loguniform": "log",
    "integer": "int",
    "categorical": "choice",
    "discrete": "values",
}
_NEAREST = _EXAMPLES | {word: _EXAMPLES[form] for word, form in _SYNONYMS.items()}
_WORD = r'(?:"(?:[^"\\]|\\.)*"|[^\s,|()="]+)'
_NAME = r'[^\s,|()="]+'
_PLAIN = re.compile(_NAME)
_WORDS = re.compile(_WORD, re.DOTALL)
_TEXT = re.compile(
    rf"\s*(?P<name>{_NAME})\s*=\s*"
    rf"(?:(?P<form>[A-Za-z_-]+)\s*\(\s*(?P<words>{_WORD}(?:\s*,\s*{_WORD})*)?\s*\)|(?P<fixed>{_WORD}))"
    rf"(?:\s+if\s+(?P<parent>{_NAME})\s*=\s*(?P<only>{_WORD}(?:\s*\|\s*{_WORD})*))?\s*",
    re.DOTALL,
)
# Numbers whose text changes when they are parsed and formatted, such as 007, are texts.
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)")
_FLOAT = re.compile(r"-?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


def parse_space(texts: Sequence[str], constraints: Sequence[str] = ()) -> SearchSpace:
    """Parse parameters and fixed values to a search space.

    Args:
        texts: Parameters, such as ``lr=log(1e-4,1e-1)`` or ``epochs=3``.
        constraints: Expressions, such as ``layers * units <= 1024``.
    """
    found = [_parse(text) for text in texts]
    # Conditions have the type of their parent, which may come later.
    choices = {name: item.values for name, item in found if isinstance(item, Parameter)}
    choices |= {name: (item,) for name, item in found if not isinstance(item, Parameter)}
    parameters = [
        replace(item, parent_values=_typed(item.parent_values, choices.get(item.parent or "", ())))
        for _, item in found
        if isinstance(item, Parameter)
    ]
    fixed: dict[str, Value] = {}
    for name, item in found:
        if isinstance(item, Parameter):
            continue
        if name in fixed:
            raise SpecError(f"the parameter '{name}' is repeated", hint="remove one of them")
        fixed[name] = item
    return SearchSpace(tuple(parameters), fixed, tuple(constraints))


def _parse(text: str) -> tuple[str, Parameter | Value]:
    """Parse a text to a name and a parameter, whose condition is still text, or a fixed value."""
    match = _TEXT.fullmatch(text)
    if match is None:
        raise _error(text)
    try:
        return match["name"], (_searched if match["fixed"] is None else _fixed)(match)
    except SpecError as error:
        raise SpecError(f"{error.message} (in {text!r})", hint=error.hint) from None
    except (KeyError, ValueError):
        raise _error(text) from None


def _searched(match: re.Match[str]) -> Parameter:
    parameter = _FORMS[match["form"]](match["name"], _WORDS.findall(match["words"] or ""))
    only = tuple(_unquoted(word) for word in _WORDS.findall(match["only"] or ""))
    return replace(parameter, parent=match["parent"], parent_values=only)


def _fixed(match: re.Match[str]) -> Value:
    if match["parent"] is not None:
        raise SpecError(f"the fixed value of '{match['name']}' cannot have a condition")
    return _parse_values([match["fixed"]])[0]


def _double(name: str, words: list[str], scale: Scale = "linear") -> Parameter:
    low, high = map(_bound, words)
    return Parameter(name, "double", low, high, scale=scale)


def _integer(name: str, words: list[str]) -> Parameter:
    words, scale = _split_scale(words)
    low, high = map(_bound, words)
    return Parameter(name, "integer", low, high, scale=scale)


def _discrete(name: str, words: list[str]) -> Parameter:
    words, scale = _split_scale(words)
    return Parameter(name, "discrete", values=tuple(map(_bound, words)), scale=scale)


def _categorical(name: str, words: list[str]) -> Parameter:
    return Parameter(name, "categorical", values=_parse_values(words))


_FORMS: Mapping[str, Callable[[str, list[str]], Parameter]] = {
    "float": _double,
    "log": partial(_double, scale="log"),
    "reverse-log": partial(_double, scale="reverse-log"),
    "int": _integer,
    "choice": _categorical,
    "values": _discrete,
}


def _split_scale(words: list[str]) -> tuple[list[str], Scale]:
    for scale in get_args(Scale):
        if words[-1:] == [scale]:
            return words[:-1], scale
    return words, "linear"


def _bound(word: str) -> int | float:
    number = _number(word.removeprefix("+"))
    if number is None:
        raise ValueError(word)
    return number


def _parse_values(words: list[str]) -> tuple[Value, ...]:
    """Parse words to numbers if all look like numbers, else to texts."""
    numbers = [_number(word) for word in words]
    if None in numbers:
        return tuple(_unquoted(word) for word in words)
    return tuple(number for number in numbers if number is not None)


def _typed(values: tuple[Value, ...], choices: Sequence[Value]) -> tuple[Value, ...]:
    """Parse a condition's values to the type of the parent's choices."""
    if any(isinstance(choice, str) for choice in choices):
        return values
    numbers = [_number(str(value)) for value in values]
    return tuple(
        value if number is None else number for number, value in zip(numbers, values, strict=True)
    )


def _number(word: str) -> int | float | None:
    if _INTEGER.fullmatch(word):
        return int(word)
    number = float(word) if _FLOAT.fullmatch(word) else math.inf
    return number if math.isfinite(number) else None


def _unquoted(word: str) -> str:
    # strict=False: JSON would refuse line breaks.
    return str(json.loads(word, strict=False)) if word.startswith('"') else word


def _error(text: str) -> SpecError:
    """Return the error of a wrong text, with an example of the nearest form."""
    name, _, body = (part.strip() for part in text.partition("="))
    name = name if _PLAIN.fullmatch(name) else "lr"
    definition, condition, _ = body.partition(" if ")
    if condition and _TEXT.fullmatch(f"{name}={definition}"):
        example = f"{definition} if optimizer=sgd|nesterov"
    else:
        called = re.match(r"[A-Za-z_-]+(?=\s*\()", body)
        close = difflib.get_close_matches(called[0], _NEAREST, n=1) if called else []
        has_words = re.search(r"[A-Za-z]{2}", body)
        example = _NEAREST[close[0]] if close else _EXAMPLES["choice" if has_words else "float"]
    return SpecError(
        f"cannot parse the parameter {text!r}", hint=f"write it like '{name}={example}'"
    )

"""Checks of arguments against annotations, on a function that has each kind of them."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import pytest

from timonel.arguments import checked
from timonel.errors import SpecError


class _Named(Protocol):
    @property
    def name(self) -> str: ...


@checked()
def read(
    path: str | os.PathLike[str] | _Named,
    *,
    count: int = 1,
    factor: float = 1.0,
    size: tuple[int, int] | Literal["auto"] | None = None,
    mode: Literal["short", "long"] = "short",
    display: Literal[False] | None = None,
    is_fast: bool | None = None,
    fractions: Sequence[float] = (),
    types: Mapping[str, str] | None = None,
    progress: Callable[[], None] | None = None,
    other: Any = None,
) -> str:
    return f"{path} {count}"


@pytest.mark.parametrize(
    "given",
    [
        {"count": np.int64(3), "factor": np.float32(0.5)},
        {"factor": 2},
        {"size": (1, 2)},
        {"size": [1, 2]},
        {"size": "auto"},
        {"is_fast": None, "mode": "long"},
        {"display": False},
        {"fractions": [0.5, 1], "types": {"a": "b"}, "progress": print, "other": object()},
    ],
)
def test_values_of_the_types(given: dict[str, Any]) -> None:
    assert read(Path("here"), **given) == f"here {given.get('count', 1)}"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"cuont": 1}, r"read\(\) has no argument 'cuont': did you mean 'count'\?"),
        ({"count": "3"}, r"expected count= as a whole number, got '3': see help\(read\)"),
        ({"count": True}, "expected count= as a whole number, got True"),
        ({"count": 1.0}, r"expected count= as a whole number, got 1\.0"),
        ({"factor": float("nan")}, "expected factor= as a finite number, got nan"),
        (
            {"size": 224},
            r"size= as two whole numbers or 'auto' or None, got 224: use \(224, 224\)",
        ),
        ({"size": (1, 2, 3)}, r"got \(1, 2, 3\)"),
        ({"size": (1.5, 2)}, r"got \(1\.5, 2\)"),
        ({"mode": "shrot"}, r"as 'short' or 'long', got 'shrot': did you mean 'short'\?"),
        ({"mode": 1}, "as 'short' or 'long', got 1"),
        ({"display": True}, "expected display= as False or None, got True"),
        ({"display": 0}, "expected display= as False or None, got 0"),
        ({"is_fast": 1}, "expected is_fast= as True or False or None, got 1"),
        ({"fractions": "0.5"}, r"expected fractions= as a list, got '0\.5'"),
        ({"fractions": ["a"]}, "got \\['a'\\]"),
        ({"types": [1]}, "expected types= as a dict or None"),
        ({"progress": 3}, "expected progress= as a function or None"),
        ({"fractions": [0.5] * 1000 + ["a"]}, r"got \[0\.5, .*\.\.\.\]"),
    ],
)
def test_other_names_and_values(given: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        read("here", **given)


def test_an_argument_that_is_missing() -> None:
    with pytest.raises(SpecError, match=r"read\(\): missing a required argument: 'path'"):
        read()  # type: ignore[call-arg] # the error


class Reader:
    """Object with a checked method."""

    @checked()
    def seek(self, place: int) -> int:
        return place


def test_a_method_needs_no_annotation_of_itself() -> None:
    assert Reader().seek(3) == 3
    with pytest.raises(SpecError, match="expected place= as a whole number"):
        Reader().seek("3")  # type: ignore[arg-type]


def add(x: int = 1, **options: Any) -> str:
    return f"{x} {options}"


add.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # as of documented functions
    [
        inspect.Parameter(
            "x", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=1, annotation="int"
        ),
        inspect.Parameter("size", inspect.Parameter.KEYWORD_ONLY, default=2, annotation=int),
    ]
)


def test_options_of_documented_functions_are_checked() -> None:
    call = checked("write {name}={value} elsewhere")(add)
    assert call(3, size=4) == "3 {'size': 4}"
    with pytest.raises(SpecError, match="expected size= as a whole number, got 'b'"):
        call(size="b")
    with pytest.raises(SpecError, match="no argument 'colour': write colour='red' elsewhere"):
        call(colour="red")

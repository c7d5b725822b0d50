"""Checks of arguments against annotations, on a function that has each kind of them."""

from __future__ import annotations

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

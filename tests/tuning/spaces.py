"""Hypothesis strategies of search spaces."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from timonel.tuning.space import Parameter, SearchSpace, Value

NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.-]{0,6}", fullmatch=True)
NUMBERS = st.integers(-(10**6), 10**6) | st.floats(-1e6, 1e6, allow_nan=False)
TEXTS = st.text(max_size=8)
VALUES = NUMBERS | TEXTS


@st.composite
def doubles(draw: st.DrawFn) -> Parameter:
    scale = draw(st.sampled_from(["linear", "log", "reverse-log"]))
    least = -1e6 if scale == "linear" else 1e-9
    low = draw(st.floats(least, 1e6))
    # Bounds that differ by rounding errors only have no inner points.
    high = low + draw(st.floats(1e-3, 1e6)) * max(1.0, abs(low))
    return Parameter(draw(NAMES), "double", low, high, scale=scale)


@st.composite
def integers(draw: st.DrawFn) -> Parameter:
    scale = draw(st.sampled_from(["linear", "log", "reverse-log"]))
    low = draw(st.integers(-(10**6) if scale == "linear" else 1, 10**6))
    high = low + draw(st.integers(1, 10**9))
    return Parameter(draw(NAMES), "integer", low, high, scale=scale)


@st.composite
def discretes(draw: st.DrawFn) -> Parameter:
    scale = draw(st.sampled_from(["linear", "log", "reverse-log"]))
    numbers = st.integers(1, 10**6) | st.floats(1e-3, 1e6)
    if draw(st.booleans()):
        start, step = draw(st.integers(1, 50)), draw(st.integers(1, 50))
        found = [start + step * index for index in range(draw(st.integers(2, 20)))]
        divisor = draw(st.sampled_from([1, 10, 1000]))
        values = tuple(value / divisor if divisor > 1 else value for value in found)
    else:
        values = tuple(sorted(draw(st.sets(numbers, min_size=2, max_size=20))))
    return Parameter(draw(NAMES), "discrete", values=values, scale=scale)


@st.composite
def categoricals(draw: st.DrawFn) -> Parameter:
    kind = draw(st.sampled_from([NUMBERS, TEXTS]))
    values = draw(st.lists(kind, min_size=2, max_size=10, unique=True))
    return Parameter(draw(NAMES), "categorical", values=tuple(values))


PARAMETERS = st.one_of(doubles(), integers(), discretes(), categoricals())


@st.composite
def spaces(draw: st.DrawFn) -> SearchSpace:
    """Spaces with conditions; parents may come later than their children."""
    parameters = [
        replace(parameter, name=f"x{index}-{parameter.name}")
        for index, parameter in enumerate(draw(st.lists(PARAMETERS, min_size=1, max_size=6)))
    ]
    for index, parameter in enumerate(parameters[1:], 1):
        parent = draw(st.sampled_from([None, *parameters[:index]]))
        if parent is None or parent.kind == "double":
            continue
        positions = draw(st.lists(st.floats(0, 1), min_size=1, max_size=3))
        only = tuple(dict.fromkeys(parent.from_unit(position) for position in positions))
        parameters[index] = replace(parameter, parent=parent.name, parent_values=only)
    fixed: dict[str, Value] = {
        f"fixed{index}": value for index, value in enumerate(draw(st.lists(VALUES, max_size=3)))
    }
    return SearchSpace(tuple(draw(st.permutations(parameters))), fixed)

"""A parameter of a search space, and its representations for samplers.

Samplers see a parameter as a position in [0, 1] on its scale, or through its Optuna distribution:

    parameter                        name in Optuna       distribution
    double, integer                  x                    float or int, log if the scale is log
    double, integer, reverse-log     x (reverse log)      the mirrored value low + high - x, log
    discrete, linear, evenly spaced  x                    int or float with a step
    other discrete                   x (index)            int: the index of the value
    categorical                      x                    categorical
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, fields
from decimal import Decimal
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, TypeAlias, TypeGuard, cast, get_args

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from timonel.errors import SpecError

Value: TypeAlias = str | int | float
ParameterKind: TypeAlias = Literal["double", "integer", "categorical", "discrete"]
Scale: TypeAlias = Literal["linear", "log", "reverse-log"]

MAX_DISCRETE_VALUES = 1000
MAX_INTEGER = 10**12
"""Limit on the bounds of integers: positions are floats, and must identify each integer."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class Parameter:
    """A parameter that a study varies.

    Attributes:
        name: Its name; a trial gets the flag ``--name=value``.
        kind: Type of its values.
        low: Smallest value of a double or an integer.
        high: Largest value of a double or an integer.
        values: Choices of a categorical parameter; increasing numbers of a discrete one.
        scale: Scale on which distances are measured. A categorical parameter has none.
        parent: Parameter or fixed value on which this one depends.
        parent_values: This parameter is active only if the parent has one of these values.
    """

    name: str
    kind: ParameterKind
    low: float | None = None
    high: float | None = None
    values: tuple[Value, ...] = ()
    scale: Scale = "linear"
    parent: str | None = None
    parent_values: tuple[Value, ...] = ()

    def __post_init__(self) -> None:
        for name in ("values", "parent_values"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        check_name(self.name)
        if self.kind not in get_args(ParameterKind):
            raise self._error(f"the type {self.kind!r} is unknown", _one_of(ParameterKind))
        if self.scale not in get_args(Scale):
            raise self._error(f"the scale {self.scale!r} is unknown", _one_of(Scale))
        if (self.parent is None) != (not self.parent_values):
            raise self._error("a condition needs a parent and at least one of its values")
        if self.kind in {"double", "integer"}:
            self._check_bounds()
        else:
            self._check_values()
        self._check_scale()

    @property
    def optuna_name(self) -> str:
        """Name of the parameter in Optuna's storage, which shows the transformation."""
        if self.kind == "discrete":
            return self.name if self._step else f"{self.name} (index)"
        return f"{self.name} (reverse log)" if self.scale == "reverse-log" else self.name

    @cached_property
    def distribution(self) -> BaseDistribution:
        """Optuna's distribution of the parameter."""
        if self.kind == "categorical":
            return CategoricalDistribution(self.values)
        if self.kind == "discrete" and not self._step:
            return IntDistribution(0, len(self.values) - 1)
        low, high = self._bounds
        if self.kind == "integer":
            return IntDistribution(int(low), int(high), log=self.scale != "linear")
        if self.kind == "double":
            return FloatDistribution(low, high, log=self.scale != "linear")
        step = self._step
        if all(isinstance(number, int) for number in (*self.values, step)):
            return IntDistribution(int(low), int(high), step=int(step))
        return FloatDistribution(low, high, step=float(step))

    @property
    def choices(self) -> Sequence[Value] | None:
        """All values in order; None for a double."""
        if self.kind == "integer":
            low, high = self._bounds
            return range(int(low), int(high) + 1)
        return self.values or None

    def contains(self, value: Value) -> bool:
        """Whether the parameter can have this value."""
        if self.kind in {"categorical", "discrete"}:
            return not isinstance(value, bool) and value in self.values
        if not is_number(value):
            return False
        low, high = self._bounds
        return low <= float(value) <= high and (self.kind == "double" or float(value).is_integer())

    def to_unit(self, value: Value) -> float:
        """Return the position of a value in [0, 1] on the parameter's scale.

        A categorical value's position is index / (number of choices - 1).
        """
        if not self.contains(value):
            raise self._error(f"the value {value!r} is outside of the space")
        if self.kind == "categorical":
            return self._positions[self.values.index(value)]
        return self._position(float(value))

    def from_unit(self, position: float) -> Value:
        """Return the value nearest to a position in [0, 1]; the inverse of `to_unit`."""
        position = min(max(float(position), 0.0), 1.0)
        if self.kind in {"categorical", "discrete"}:
            return self.values[_nearest(self._positions, position)]
        low, high = self._bounds
        if position in {0.0, 1.0}:
            value = high if position else low
        else:
            start, end = self._scaled(low), self._scaled(high)
            value = min(max(self._unscaled(start + position * (end - start)), low), high)
        if self.kind == "double":
            return value
        candidates = (math.floor(value), math.ceil(value))
        return candidates[_nearest([self._position(number) for number in candidates], position)]

    def to_optuna(self, value: Value) -> Any:
        """Return Optuna's value for a value of the parameter."""
        if not self.contains(value):
            raise self._error(f"the value {value!r} is outside of the space")
        if self.kind == "categorical" or (self.kind == "discrete" and self._step):
            return value
        if self.kind == "discrete":
            return self.values.index(value)
        mirrored = self._mirrored(float(value)) if self.scale == "reverse-log" else float(value)
        return round(mirrored) if self.kind == "integer" else mirrored

    def from_optuna(self, value: Any) -> Value:
        """Return the parameter's value for Optuna's; the inverse of `to_optuna`."""
        if self.kind == "categorical":
            return self.values[self.values.index(value)]
        if self.kind == "discrete" and not self._step:
            return self.values[int(value)]
        if self.kind == "discrete":
            return self.from_unit(self._position(min(max(value, self._bounds[0]), self._bounds[1])))
        number = self._mirrored(float(value)) if self.scale == "reverse-log" else float(value)
        return round(number) if self.kind == "integer" else number

    def to_json(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults, for a JSON document."""
        found = {item.name: getattr(self, item.name) for item in fields(self)}
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in found.items()
            if value is not None and value != () and (name, value) != ("scale", "linear")
        }

    @cached_property
    def _bounds(self) -> tuple[float, float]:
        if self.kind == "discrete":
            return float(self.values[0]), float(self.values[-1])
        assert self.low is not None
        assert self.high is not None
        return float(self.low), float(self.high)

    @cached_property
    def _positions(self) -> tuple[float, ...]:
        """Position of each categorical or discrete value."""
        if self.kind == "categorical":
            return tuple(index / (len(self.values) - 1) for index in range(len(self.values)))
        return tuple(self._position(float(value)) for value in self.values)

    @cached_property
    def _step(self) -> float:
        """Distance between discrete values on a linear scale; 0 if it differs."""
        if self.scale != "linear":
            return 0
        # Differences of floats such as 0.1, 0.2 and 0.3 are equal as decimals only.
        exact = [Decimal(str(value)) for value in self.values]
        steps = {above - below for below, above in pairwise(exact)}
        step = steps.pop()
        if steps or Decimal(str(float(step))) != step:
            return 0
        whole = all(isinstance(value, int) for value in self.values)
        return int(step) if whole else float(step)

    def _position(self, number: float) -> float:
        low, high = self._bounds
        start, end = self._scaled(low), self._scaled(high)
        return min(max((self._scaled(number) - start) / (end - start), 0.0), 1.0)

    def _scaled(self, number: float) -> float:
        if self.scale == "linear":
            return number
        return math.log(number) if self.scale == "log" else -math.log(self._mirrored(number))

    def _unscaled(self, number: float) -> float:
        if self.scale == "linear":
            return number
        return math.exp(number) if self.scale == "log" else self._mirrored(math.exp(-number))

    def _mirrored(self, number: float) -> float:
        low, high = self._bounds
        # In this order the mirrored maximum is exactly the minimum, however small it is.
        return min(max(low + (high - number), low), high)

    def _check_bounds(self) -> None:
        if self.values:
            raise self._error(f"a parameter of type {self.kind} has bounds instead of values")
        for name in ("low", "high"):
            bound, word = getattr(self, name), "minimum" if name == "low" else "maximum"
            if bound is None:
                raise self._error(f"it has no {word}")
            if not is_number(bound):
                raise self._error(f"the {word} must be a finite number, got {bound!r}")
            if self.kind == "integer" and not float(bound).is_integer():
                raise self._error(f"the {word} of an integer must be whole, got {bound!r}")
            if self.kind == "integer" and abs(bound) > MAX_INTEGER:
                raise self._error(f"the {word} must be at most {MAX_INTEGER} in size, got {bound}")
            object.__setattr__(self, name, (int if self.kind == "integer" else float)(bound))
        low, high = self._bounds
        if low > high:
            raise self._error(
                f"the minimum {self.low} is above the maximum {self.high}", "swap them"
            )
        if low == high:
            raise self._error(
                f"the minimum and the maximum are both {self.low}",
                f"fix it: {self.name}={self.low}",
            )
        if not math.isfinite(high - low):
            raise self._error("the range from minimum to maximum is too large for a float")

    def _check_values(self) -> None:
        if self.low is not None or self.high is not None:
            raise self._error(f"a parameter of type {self.kind} has values instead of bounds")
        if not self.values:
            raise self._error("it has no values", "give at least two")
        if self.kind == "discrete":
            self._check_numbers()
        elif not all(isinstance(value, str) or is_number(value) for value in self.values):
            raise self._error(
                f"the choices must be texts or finite numbers, got {list(self.values)}",
                "write true and false as texts",
            )
        elif len({isinstance(value, str) for value in self.values}) > 1:
            raise self._error(f"the choices {list(self.values)} mix texts and numbers")
        elif len(set(self.values)) < len(self.values):
            raise self._error(f"a choice is repeated in {list(self.values)}")
        if len(self.values) == 1:
            only = self.values[0]
            raise self._error(f"it has one value, {only!r}", f"fix it: {self.name}={only}")

    def _check_numbers(self) -> None:
        if len(self.values) > MAX_DISCRETE_VALUES:
            raise self._error(
                f"{len(self.values)} discrete values exceed the limit of {MAX_DISCRETE_VALUES}",
                "use a double or an integer with a minimum and a maximum",
            )
        for value in self.values:
            if not is_number(value):
                raise self._error(f"discrete values must be finite numbers, got {value!r}")
        numbers = [float(value) for value in self.values]
        for below, above in pairwise(numbers):
            if below >= above:
                raise self._error(f"discrete values must increase, got {below:g} before {above:g}")
        if not math.isfinite(numbers[-1] - numbers[0]):
            raise self._error("the range of the values is too large for a float")

    def _check_scale(self) -> None:
        if self.scale == "linear":
            return
        if self.kind == "categorical":
            raise self._error("a categorical parameter has no scale", "remove the scale")
        low, high = self._bounds
        if low <= 0:
            raise self._error(
                f"the {self.scale} scale needs a positive minimum, got {low:g}",
                "raise the minimum, or use a linear scale",
            )
        if self._scaled(low) >= self._scaled(high):
            raise self._error(f"the bounds are too close to each other for a {self.scale} scale")

    def _error(self, problem: str, hint: str | None = None) -> SpecError:
        return SpecError(f"parameter '{self.name}': {problem}", hint=hint)


def check_name(name: str) -> None:
    """Check that a parameter's name can be a flag."""
    if not _NAME.fullmatch(name):
        raise SpecError(
            f"the parameter name {name!r} cannot be a flag",
            hint="use letters, digits, '_', '-' and '.', and begin with a letter or '_'",
        )


def is_number(value: object) -> TypeGuard[float]:
    """Whether a value is a finite int or float, and not a bool."""
    return type(value) in {int, float} and math.isfinite(cast("float", value))


def _nearest(positions: Sequence[float], position: float) -> int:
    """Return the index of the nearest of increasing positions."""
    above = min(bisect_left(positions, position), len(positions) - 1)
    if above and position - positions[above - 1] <= positions[above] - position:
        return above - 1
    return above


def _one_of(alias: Any) -> str:
    return f"use one of {', '.join(get_args(alias))}"

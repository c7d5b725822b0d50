"""Search space of a study: parameters, fixed values and constraints between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from optuna import Trial
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from timonel.errors import FormatError, SpecError, did_you_mean
from timonel.tuning.constraints import Constraint, Kind, identifier
from timonel.tuning.parameters import Parameter, Value, check_name, is_number

__all__ = ["Parameter", "SearchSpace", "Value"]


@dataclass(frozen=True, eq=False)
class SearchSpace:
    """Parameters of a study. Immutable; equal to a space with the same content in any order.

    Attributes:
        parameters: Parameters, parents before children.
        fixed: Values that all trials share.
        constraints: Expressions that the values of a trial must satisfy.
    """

    parameters: tuple[Parameter, ...]
    fixed: Mapping[str, Value] = field(default_factory=dict)
    constraints: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.parameters:
            fixed = f": {', '.join(self.fixed)} has a fixed value" if self.fixed else ""
            raise SpecError(
                f"the search space is empty{fixed}",
                hint="give a parameter with a range, such as 'lr=log(1e-4,1e-1)'",
            )
        object.__setattr__(self, "fixed", dict(self.fixed))
        object.__setattr__(self, "constraints", tuple(self.constraints))
        self._check_names()
        for name, value in self.fixed.items():
            check_name(name)
            if not isinstance(value, str) and not is_number(value):
                raise SpecError(
                    f"the fixed value of '{name}' must be a text or a number, got {value!r}"
                )
        for parameter in self.parameters:
            self._check_condition(parameter)
        object.__setattr__(self, "parameters", self._parents_first())
        for constraint in self._compiled:
            if constraint.names <= self.fixed.keys() and not constraint.holds(self.fixed):
                raise SpecError(f"the fixed values violate the constraint '{constraint.text}'")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SearchSpace):
            return NotImplemented
        return self._content == other._content

    def __hash__(self) -> int:
        return hash(self._content)

    def distributions(self) -> dict[str, BaseDistribution]:
        """Return Optuna's distribution of each parameter, by Optuna's name."""
        return {parameter.optuna_name: parameter.distribution for parameter in self.parameters}

    def suggest(self, trial: Trial) -> dict[str, Value]:
        """Let a trial's sampler choose the value of each active parameter.

        Returns:
            Active and fixed values, by parameter name.
        """
        values = dict(self.fixed)
        for parameter in self.parameters:
            if self.is_active(parameter, values):
                chosen = _suggested(trial, parameter.optuna_name, parameter.distribution)
                values[parameter.name] = parameter.from_optuna(chosen)
        return self._fixed_last(values)

    def values_of(self, params: Mapping[str, Any]) -> dict[str, Value]:
        """Return active and fixed values for the parameters of an Optuna trial."""
        values = dict(self.fixed)
        for parameter in self.parameters:
            if parameter.optuna_name in params and self.is_active(parameter, values):
                values[parameter.name] = parameter.from_optuna(params[parameter.optuna_name])
        return self._fixed_last(values)

    def _fixed_last(self, values: Mapping[str, Value]) -> dict[str, Value]:
        """Return values in the order in which a narrow column should show them."""
        chosen = {name: value for name, value in values.items() if name not in self.fixed}
        return {**chosen, **self.fixed}

    def params_of(self, values: Mapping[str, Value]) -> dict[str, Any]:
        """Return Optuna's parameters for values, for `Study.enqueue_trial`; omit inactive ones."""
        values = {**values, **self.fixed}
        return {
            parameter.optuna_name: parameter.to_optuna(values[parameter.name])
            for parameter in self.parameters
            if parameter.name in values and self.is_active(parameter, values)
        }

    def is_active(self, parameter: Parameter, values: Mapping[str, Value]) -> bool:
        """Whether a trial with these values of the parents uses the parameter."""
        if parameter.parent is None:
            return True
        if parameter.parent in self.fixed:
            return self.fixed[parameter.parent] in parameter.parent_values
        above = self._by_name[parameter.parent]
        return values.get(above.name) in parameter.parent_values and self.is_active(above, values)

    def violated(self, values: Mapping[str, Value]) -> str | None:
        """Return the first constraint that the values do not satisfy, or None.

        Constraints that contain an inactive parameter are skipped.
        """
        known = {**values, **self.fixed}
        for constraint in self._compiled:
            if constraint.names <= known.keys() and not constraint.holds(known):
                return constraint.text
        return None

    def to_json(self) -> dict[str, Any]:
        """Return the space for a JSON document."""
        return {
            "parameters": [parameter.to_json() for parameter in self.parameters],
            "fixed": dict(self.fixed),
            "constraints": list(self.constraints),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> SearchSpace:
        """Return the space of a JSON document; the inverse of `to_json`."""
        try:
            parameters = tuple(Parameter(**item) for item in document["parameters"])
            return cls(parameters, document["fixed"], tuple(document["constraints"]))
        except (TypeError, KeyError, AttributeError, ValueError, SpecError) as error:
            raise FormatError(
                f"the study's search space cannot be read: {error}",
                hint="it was edited, or written by another release",
            ) from error

    @cached_property
    def _by_name(self) -> dict[str, Parameter]:
        return {parameter.name: parameter for parameter in self.parameters}

    @cached_property
    def _compiled(self) -> tuple[Constraint, ...]:
        # A parameter without values is a number between bounds.
        values = {parameter.name: (*parameter.values, 0)[0] for parameter in self.parameters}
        kinds: dict[str, Kind] = {
            name: "text" if isinstance(value, str) else "number"
            for name, value in {**values, **self.fixed}.items()
        }
        return tuple(Constraint(text, kinds) for text in self.constraints)

    @cached_property
    def _content(self) -> tuple[frozenset[Any], ...]:
        return (
            frozenset(self.parameters),
            frozenset(self.fixed.items()),
            frozenset(self.constraints),
        )

    def _check_names(self) -> None:
        # Scripts see --a-b and --a_b as one option, and constraints as one name.
        known: dict[str, str] = {}
        for name in (*(parameter.name for parameter in self.parameters), *self.fixed):
            other = known.get(identifier(name))
            if other is not None:
                again = "is repeated" if other == name else f"is the same option as '{other}'"
                raise SpecError(f"the parameter '{name}' {again}", hint="remove one of them")
            known[identifier(name)] = name

    def _check_condition(self, parameter: Parameter) -> None:
        parent, wanted = parameter.parent, parameter.parent_values
        if parent is None:
            return
        prefix = f"parameter '{parameter.name}':"
        if parent in self.fixed:
            if self.fixed[parent] not in wanted:
                raise SpecError(
                    f"{prefix} it is never active, as '{parent}' is fixed to another value"
                )
            return
        above = self._by_name.get(parent)
        if above is None:
            raise SpecError(
                f"{prefix} its parent '{parent}' is not a parameter",
                hint=did_you_mean(parent, [*self._by_name, *self.fixed])
                or f"add '{parent}' to the space",
            )
        if above.kind == "double":
            raise SpecError(
                f"{prefix} its parent '{parent}' is a double",
                hint="a condition needs separate values: an integer, a choice or a list of values",
            )
        for value in wanted:
            if not above.contains(value):
                has = above.values or f"{above.low} to {above.high}"
                listed = has if isinstance(has, str) else ", ".join(map(str, has))
                raise SpecError(
                    f"{prefix} its parent '{parent}' has no value {value!r}",
                    hint=f"the values are {listed}",
                )

    def _parents_first(self) -> tuple[Parameter, ...]:
        """Return the parameters in their order, but each parent before its children."""
        placed: dict[str, Parameter] = {}
        waiting = list(self.parameters)
        while waiting:
            for parameter in waiting:
                if parameter.parent is None or parameter.parent in {*placed, *self.fixed}:
                    break
            else:
                names = ", ".join(f"'{parameter.name}'" for parameter in waiting)
                raise SpecError(
                    f"the conditions of {names} form a cycle", hint="remove one of the conditions"
                )
            waiting.remove(parameter)
            placed[parameter.name] = parameter
        return tuple(placed.values())


def _suggested(trial: Trial, name: str, distribution: BaseDistribution) -> Any:
    match distribution:
        case FloatDistribution(low=low, high=high, step=step, log=log):
            return trial.suggest_float(name, low, high, step=step, log=log)
        case IntDistribution(low=low, high=high, step=step, log=log):
            return trial.suggest_int(name, low, high, step=step, log=log)
        case CategoricalDistribution(choices=choices):
            return trial.suggest_categorical(name, choices)
    raise AssertionError(distribution)

from __future__ import annotations

import math
from typing import Any

import optuna
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tuning.spaces import PARAMETERS, spaces
from timonel.errors import FormatError, SpecError
from timonel.tuning.space import Parameter, SearchSpace, Value

OPTIMIZER = Parameter("optimizer", "categorical", values=("adam", "sgd", "nesterov"))
MOMENTUM = Parameter(
    "momentum", "double", 0, 1, parent="optimizer", parent_values=("sgd", "nesterov")
)
LAYERS = Parameter("layers", "integer", 1, 4)
UNITS = Parameter("units", "integer", 32, 512, scale="log")


def close(parameter: Parameter, first: Value, second: Value) -> bool:
    if parameter.kind != "double":
        return first == second and type(first) is type(second)
    assert parameter.low is not None
    assert parameter.high is not None
    size = max(abs(parameter.low), abs(parameter.high))
    if parameter.scale == "log":
        size = float(first)
    return math.isclose(float(first), float(second), rel_tol=0, abs_tol=1e-9 * size)


@given(PARAMETERS, st.floats(0, 1))
def test_positions_round_trip(parameter: Parameter, position: float) -> None:
    value = parameter.from_unit(position)
    assert parameter.contains(value)
    assert 0 <= parameter.to_unit(value) <= 1
    assert close(parameter, value, parameter.from_unit(parameter.to_unit(value)))


@given(PARAMETERS)
def test_ends(parameter: Parameter) -> None:
    first, last = parameter.from_unit(0), parameter.from_unit(1)
    ends = (
        (parameter.low, parameter.high)
        if parameter.low is not None
        else (parameter.values[0], parameter.values[-1])
    )
    assert (first, last) == ends
    assert (parameter.to_unit(first), parameter.to_unit(last)) == (0, 1)
    assert (parameter.from_unit(-3), parameter.from_unit(7)) == ends


@given(PARAMETERS, st.floats(0, 1), st.floats(0, 1))
def test_positions_are_ordered(parameter: Parameter, first: float, second: float) -> None:
    low, high = sorted((first, second))
    places = [parameter.to_unit(parameter.from_unit(place)) for place in (low, high)]
    assert places[0] <= places[1] + 1e-9


@given(PARAMETERS, st.floats(0, 1))
def test_optuna_values_round_trip(parameter: Parameter, position: float) -> None:
    value = parameter.from_unit(position)
    stored = parameter.to_optuna(value)
    distribution = parameter.distribution
    assert distribution._contains(distribution.to_internal_repr(stored))
    assert close(parameter, value, parameter.from_optuna(stored))


@pytest.mark.parametrize(
    ("parameter", "position", "value"),
    [
        (Parameter("x", "double", 0, 10), 0.25, 2.5),
        (Parameter("x", "double", 1e-4, 1, scale="log"), 0.5, 0.01),
        (Parameter("x", "double", 1, 100, scale="reverse-log"), 0.5, 91),
        (Parameter("x", "integer", 1, 9), 0.5, 5),
        (Parameter("x", "integer", 1, 100, scale="log"), 0.5, 10),
        (Parameter("x", "integer", 1, 100, scale="reverse-log"), 0.5, 91),
        (Parameter("x", "discrete", values=(1, 2, 11)), 0.1, 2),
        (Parameter("x", "discrete", values=(1, 10, 100), scale="log"), 0.5, 10),
        (Parameter("x", "categorical", values=("a", "b", "c")), 0.5, "b"),
    ],
)
def test_scales(parameter: Parameter, position: float, value: Value) -> None:
    assert parameter.from_unit(position) == pytest.approx(value) if value != "b" else True
    assert parameter.to_unit(value) == pytest.approx(position)


@pytest.mark.parametrize(
    ("parameter", "name", "distribution"),
    [
        (
            Parameter("x", "double", 1, 2),
            "x",
            optuna.distributions.FloatDistribution(1, 2),
        ),
        (
            Parameter("x", "double", 1, 2, scale="log"),
            "x",
            optuna.distributions.FloatDistribution(1, 2, log=True),
        ),
        (
            Parameter("x", "double", 1, 2, scale="reverse-log"),
            "x (reverse log)",
            optuna.distributions.FloatDistribution(1, 2, log=True),
        ),
        (Parameter("x", "integer", 1, 9), "x", optuna.distributions.IntDistribution(1, 9)),
        (
            Parameter("x", "integer", 1, 9, scale="reverse-log"),
            "x (reverse log)",
            optuna.distributions.IntDistribution(1, 9, log=True),
        ),
        (
            Parameter("x", "discrete", values=(8, 16, 24)),
            "x",
            optuna.distributions.IntDistribution(8, 24, step=8),
        ),
        (
            Parameter("x", "discrete", values=(0.1, 0.2, 0.3)),
            "x",
            optuna.distributions.FloatDistribution(0.1, 0.3, step=0.1),
        ),
        (
            Parameter("x", "discrete", values=(0, 0.5, 1)),
            "x",
            optuna.distributions.FloatDistribution(0, 1, step=0.5),
        ),
        (
            Parameter("x", "discrete", values=(16, 32, 64)),
            "x (index)",
            optuna.distributions.IntDistribution(0, 2),
        ),
        (
            Parameter("x", "discrete", values=(1, 2, 3), scale="log"),
            "x (index)",
            optuna.distributions.IntDistribution(0, 2),
        ),
        (
            Parameter("x", "categorical", values=("a", "b")),
            "x",
            optuna.distributions.CategoricalDistribution(("a", "b")),
        ),
    ],
)
def test_distributions(
    parameter: Parameter, name: str, distribution: optuna.distributions.BaseDistribution
) -> None:
    assert SearchSpace((parameter,)).distributions() == {name: distribution}


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"kind": "double", "low": 2, "high": 1}, "the minimum 2.0 is above the maximum 1.0"),
        ({"kind": "integer", "low": 2, "high": 1}, "the minimum 2 is above the maximum 1"),
        ({"kind": "double", "low": 1, "high": 1}, "the minimum and the maximum are both 1.0"),
        ({"kind": "double", "low": 1}, "it has no maximum"),
        ({"kind": "double", "high": 1}, "it has no minimum"),
        ({"kind": "double", "low": 0, "high": math.inf}, "must be a finite number, got inf"),
        ({"kind": "double", "low": math.nan, "high": 1}, "must be a finite number, got nan"),
        ({"kind": "double", "low": False, "high": 1}, "must be a finite number, got False"),
        ({"kind": "double", "low": "0", "high": 1}, "must be a finite number, got '0'"),
        ({"kind": "double", "low": -1e308, "high": 1e308}, "too large for a float"),
        ({"kind": "integer", "low": 0.5, "high": 1}, "must be whole, got 0.5"),
        ({"kind": "integer", "low": 0, "high": 10**13}, "at most 1000000000000 in size"),
        ({"kind": "double", "low": 0, "high": 1, "values": (1,)}, "bounds instead of values"),
        ({"kind": "discrete", "values": (1, 2), "low": 0}, "values instead of bounds"),
        ({"kind": "discrete"}, "it has no values"),
        ({"kind": "categorical"}, "it has no values"),
        ({"kind": "discrete", "values": (1,)}, "it has one value, 1"),
        ({"kind": "categorical", "values": ("a",)}, "it has one value, 'a'"),
        ({"kind": "discrete", "values": (1, 3, 2)}, "must increase, got 3 before 2"),
        ({"kind": "discrete", "values": (1, 1)}, "must increase, got 1 before 1"),
        ({"kind": "discrete", "values": (1, "2")}, "must be finite numbers, got '2'"),
        ({"kind": "discrete", "values": (1, math.nan)}, "must be finite numbers, got nan"),
        ({"kind": "discrete", "values": (-1e308, 1e308)}, "too large for a float"),
        ({"kind": "discrete", "values": range(1001)}, "1001 discrete values exceed the limit"),
        ({"kind": "categorical", "values": ("a", "b", "a")}, "a choice is repeated"),
        ({"kind": "categorical", "values": (True, False)}, "must be texts or finite numbers"),
        ({"kind": "categorical", "values": (1, "a")}, "mix texts and numbers"),
        ({"kind": "double", "low": 0, "high": 1, "scale": "log"}, "needs a positive minimum"),
        (
            {"kind": "integer", "low": -1, "high": 1, "scale": "reverse-log"},
            "the reverse-log scale needs a positive minimum, got -1",
        ),
        ({"kind": "discrete", "values": (0, 1), "scale": "log"}, "needs a positive minimum"),
        ({"kind": "categorical", "values": ("a", "b"), "scale": "log"}, "has no scale"),
        ({"kind": "double", "low": 0, "high": 1, "scale": "cubic"}, "the scale 'cubic' is unknown"),
        ({"kind": "float", "low": 0, "high": 1}, "the type 'float' is unknown"),
        (
            {"kind": "double", "low": 1e300, "high": math.nextafter(1e300, 2e300), "scale": "log"},
            "too close to each other",
        ),
        ({"kind": "double", "low": 0, "high": 1, "parent": "p"}, "needs a parent and at least one"),
        ({"kind": "double", "low": 0, "high": 1, "parent_values": (1,)}, "needs a parent and"),
    ],
)
def test_invalid_parameters(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(SpecError) as caught:
        Parameter("x", **fields)
    assert caught.value.message.startswith("parameter 'x': ")
    assert problem in caught.value.message


@pytest.mark.parametrize("name", ["", "-x", "1x", "a b", "a=b", "x\n", "ä"])
def test_invalid_names(name: str) -> None:
    with pytest.raises(SpecError, match="cannot be a flag"):
        Parameter(name, "double", 0, 1)
    with pytest.raises(SpecError, match="cannot be a flag"):
        SearchSpace((LAYERS,), {name: 1})


@pytest.mark.parametrize("value", [0, 5, 2.5, "2", True])
def test_values_outside_of_a_parameter(value: Value) -> None:
    assert not LAYERS.contains(value)
    with pytest.raises(SpecError, match="is outside of the space"):
        LAYERS.to_unit(value)
    with pytest.raises(SpecError, match="is outside of the space"):
        LAYERS.to_optuna(value)


def test_choices_are_all_values_in_order() -> None:
    assert LAYERS.choices is not None
    assert list(LAYERS.choices) == [1, 2, 3, 4]
    assert OPTIMIZER.choices == ("adam", "sgd", "nesterov")
    assert MOMENTUM.choices is None


def test_a_whole_float_is_an_integer() -> None:
    assert LAYERS.contains(2.0)
    assert LAYERS.to_optuna(2.0) == 2


def test_empty_space() -> None:
    with pytest.raises(SpecError, match=r"^the search space is empty: give a parameter"):
        SearchSpace(())
    with pytest.raises(SpecError, match="the search space is empty: epochs has a fixed value"):
        SearchSpace((), {"epochs": 3})


@pytest.mark.parametrize(
    ("parameters", "fixed", "problem"),
    [
        ((LAYERS, LAYERS), {}, "the parameter 'layers' is repeated"),
        ((LAYERS,), {"layers": 3}, "the parameter 'layers' is repeated"),
        ((Parameter("a-b", "double", 0, 1),), {"a_b": 1}, "'a_b' is the same option as 'a-b'"),
        ((MOMENTUM,), {}, "its parent 'optimizer' is not a parameter"),
        ((MOMENTUM,), {"optimizer": "adam"}, "is never active, as 'optimizer' is fixed"),
        (
            (MOMENTUM, Parameter("optimizer", "categorical", values=("adam", "sgd"))),
            {},
            "its parent 'optimizer' has no value 'nesterov': the values are adam, sgd",
        ),
        (
            (Parameter("x", "double", 0, 1, parent="layers", parent_values=(5,)), LAYERS),
            {},
            "its parent 'layers' has no value 5: the values are 1 to 4",
        ),
        (
            (
                Parameter("x", "double", 0, 1, parent="y", parent_values=(0.5,)),
                Parameter("y", "double", 0, 1),
            ),
            {},
            "its parent 'y' is a double",
        ),
        (
            (
                Parameter("x", "integer", 0, 1, parent="y", parent_values=(1,)),
                Parameter("y", "integer", 0, 1, parent="x", parent_values=(1,)),
                LAYERS,
            ),
            {},
            "the conditions of 'x', 'y' form a cycle",
        ),
        (
            (Parameter("x", "integer", 0, 1, parent="x", parent_values=(1,)),),
            {},
            "the conditions of 'x' form a cycle",
        ),
        ((LAYERS,), {"flag": True}, "must be a text or a number, got True"),
        ((LAYERS,), {"rate": math.nan}, "must be a text or a number, got nan"),
    ],
)
def test_inconsistent_spaces(
    parameters: tuple[Parameter, ...], fixed: dict[str, Value], problem: str
) -> None:
    with pytest.raises(SpecError) as caught:
        SearchSpace(parameters, fixed)
    assert problem in str(caught.value)


def test_unknown_parent_suggests_a_name() -> None:
    child = Parameter("x", "integer", 0, 1, parent="layer", parent_values=(1,))
    with pytest.raises(SpecError, match="did you mean 'layers'"):
        SearchSpace((child, LAYERS))


def test_parents_come_first() -> None:
    deep = Parameter("deep", "integer", 0, 1, parent="middle", parent_values=(1,))
    middle = Parameter("middle", "integer", 0, 1, parent="layers", parent_values=(2,))
    space = SearchSpace((deep, UNITS, middle, LAYERS))
    assert [parameter.name for parameter in space.parameters] == [
        "units",
        "layers",
        "middle",
        "deep",
    ]


def test_only_active_parameters_are_suggested() -> None:
    space = SearchSpace((MOMENTUM, OPTIMIZER), {"epochs": 3})
    adam = optuna.trial.FixedTrial({"optimizer": "adam", "momentum": 0.5})
    assert space.suggest(adam) == {"epochs": 3, "optimizer": "adam"}  # type: ignore[arg-type]
    assert adam.params == {"optimizer": "adam"}
    assert space.values_of({"optimizer": "adam", "momentum": 0.5}) == {
        "epochs": 3,
        "optimizer": "adam",
    }
    assert space.values_of({"optimizer": "sgd", "momentum": 0.5})["momentum"] == 0.5
    assert space.params_of({"optimizer": "adam", "momentum": 0.5}) == {"optimizer": "adam"}
    assert space.is_active(MOMENTUM, {"optimizer": "nesterov"})
    assert not space.is_active(MOMENTUM, {})


def test_child_of_an_inactive_parent_is_inactive() -> None:
    middle = Parameter("middle", "integer", 0, 1, parent="layers", parent_values=(2,))
    deep = Parameter("deep", "integer", 0, 1, parent="middle", parent_values=(1,))
    space = SearchSpace((LAYERS, middle, deep))
    assert space.is_active(deep, {"layers": 2, "middle": 1})
    assert not space.is_active(deep, {"layers": 1, "middle": 1})


def test_parent_may_be_fixed() -> None:
    space = SearchSpace((MOMENTUM,), {"optimizer": "sgd"})
    assert space.is_active(MOMENTUM, {})
    assert space.values_of({"momentum": 0.5}) == {"optimizer": "sgd", "momentum": 0.5}


@settings(max_examples=30)
@given(spaces(), st.integers(0, 99))
def test_suggestions_of_a_study(space: SearchSpace, seed: int) -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
    trial = study.ask()
    values = space.suggest(trial)
    assert space.values_of(trial.params) == values
    assert trial.distributions.items() <= space.distributions().items()
    active = {p.name for p in space.parameters if space.is_active(p, values)}
    assert values.keys() == active | space.fixed.keys()
    for parameter in space.parameters:
        assert parameter.name not in values or parameter.contains(values[parameter.name])
    study.enqueue_trial(space.params_of(values))
    again = space.suggest(study.ask())
    for parameter in space.parameters:
        if parameter.name in active:
            assert close(parameter, values[parameter.name], again[parameter.name])


def test_constraints() -> None:
    space = SearchSpace(
        (LAYERS, UNITS, OPTIMIZER, MOMENTUM),
        {"epochs": 3},
        ("layers * units <= 1024", "momentum > 0.5", "epochs < 4 and optimizer != 'x'"),
    )
    good: dict[str, Value] = {"layers": 2, "units": 512, "optimizer": "adam"}
    assert space.violated(good) is None
    assert space.violated({**good, "layers": 3}) == "layers * units <= 1024"
    assert space.violated({**good, "optimizer": "sgd", "momentum": 0.1}) == "momentum > 0.5"


@pytest.mark.parametrize(
    ("constraint", "problem"),
    [
        ("layer < 3", "contains the unknown name 'layer': did you mean 'layers'?"),
        ("epochs > 3", "the fixed values violate the constraint 'epochs > 3'"),
        ("optimizer < 3", "compares a text with a number"),
    ],
)
def test_wrong_constraints_are_refused_with_the_space(constraint: str, problem: str) -> None:
    with pytest.raises(SpecError) as caught:
        SearchSpace((LAYERS, OPTIMIZER), {"epochs": 3}, (constraint,))
    assert problem in str(caught.value)


@given(spaces())
def test_json_round_trip(space: SearchSpace) -> None:
    document = orjson.loads(orjson.dumps(space.to_json()))
    found = SearchSpace.from_json(document)
    assert found == space
    assert found.parameters == space.parameters
    assert found.to_json() == space.to_json()


def test_json_of_a_parameter_omits_defaults() -> None:
    assert MOMENTUM.to_json() == {
        "name": "momentum",
        "kind": "double",
        "low": 0.0,
        "high": 1.0,
        "parent": "optimizer",
        "parent_values": ["sgd", "nesterov"],
    }


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"parameters": None, "fixed": {}, "constraints": []},
        {"parameters": [{"name": "x"}], "fixed": {}, "constraints": []},
        {"parameters": [{**LAYERS.to_json(), "future": 1}], "fixed": {}, "constraints": []},
        {"parameters": [{**LAYERS.to_json(), "name": 1}], "fixed": {}, "constraints": []},
        {"parameters": [], "fixed": {}, "constraints": []},
        {"parameters": [LAYERS.to_json()], "fixed": [1], "constraints": []},
    ],
)
def test_unreadable_documents(document: dict[str, Any]) -> None:
    with pytest.raises(FormatError, match="the study's search space cannot be read"):
        SearchSpace.from_json(document)


def test_equality_ignores_the_order() -> None:
    space = SearchSpace((LAYERS, UNITS), {"a": 1, "b": 2}, ("a < 2", "b < 3"))
    same = SearchSpace((UNITS, LAYERS), {"b": 2, "a": 1}, ("b < 3", "a < 2"))
    assert space == same
    assert hash(space) == hash(same)
    assert space != SearchSpace((LAYERS, UNITS), {"a": 1, "b": 2}, ("a < 2",))
    assert space != SearchSpace((LAYERS, UNITS), {"a": 1}, ())
    assert space != SearchSpace((LAYERS,), {"a": 1, "b": 2}, ("a < 2", "b < 3"))
    assert space != "space"

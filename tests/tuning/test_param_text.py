from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tuning.spaces import spaces
from timonel.errors import SpecError
from timonel.tuning.param_text import parse_space
from timonel.tuning.space import Parameter, SearchSpace, Value


def parse(text: str) -> Parameter:
    return parse_space([text]).parameters[0]


def fixed(text: str) -> Value:
    return parse_space(["x=float(0,1)", text]).fixed["f"]


@pytest.mark.parametrize(
    ("text", "parameter"),
    [
        ("lr=log(1e-4,1e-1)", Parameter("lr", "double", 1e-4, 0.1, scale="log")),
        ("x=float(0,1)", Parameter("x", "double", 0.0, 1.0)),
        ("x=float(-1,+1)", Parameter("x", "double", -1.0, 1.0)),
        (
            "x=reverse-log(0.9,0.999)",
            Parameter("x", "double", 0.9, 0.999, scale="reverse-log"),
        ),
        ("units=int(32,256)", Parameter("units", "integer", 32, 256)),
        ("units=int(1e1,1e3)", Parameter("units", "integer", 10, 1000)),
        ("units=int(32,256,log)", Parameter("units", "integer", 32, 256, scale="log")),
        ("n=int(1,9,reverse-log)", Parameter("n", "integer", 1, 9, scale="reverse-log")),
        ("n=int(1,9,linear)", Parameter("n", "integer", 1, 9)),
        ("act=choice(relu,tanh)", Parameter("act", "categorical", values=("relu", "tanh"))),
        ("batch=values(16,32,64)", Parameter("batch", "discrete", values=(16, 32, 64))),
        ("b=values(16,32,log)", Parameter("b", "discrete", values=(16, 32), scale="log")),
        (
            'c=choice("a, b", "say \\"hi\\"")',
            Parameter("c", "categorical", values=("a, b", 'say "hi"')),
        ),
        (" learning-rate = float( 0 , 1 ) ", Parameter("learning-rate", "double", 0.0, 1.0)),
    ],
)
def test_texts(text: str, parameter: Parameter) -> None:
    assert parse(text) == parameter


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("x=choice(1,2)", (1, 2)),
        ("x=choice(1,2.5)", (1, 2.5)),
        ("x=choice(1e-3,.5)", (0.001, 0.5)),
        ("x=choice(1,two)", ("1", "two")),
        ('x=choice("1",2)', ("1", "2")),
        ("x=choice(007,010)", ("007", "010")),
        ("x=choice(inf,1e999)", ("inf", "1e999")),
        ("x=choice(true,1)", ("true", "1")),
    ],
)
def test_choices_are_numbers_only_if_all_look_like_numbers(
    text: str, values: tuple[Value, ...]
) -> None:
    found = parse(text).values
    assert found == values
    assert [type(value) for value in found] == [type(value) for value in values]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("f=3", 3),
        ("f=1e-3", 0.001),
        ("f=adam", "adam"),
        ('f="3"', "3"),
        ('f=""', ""),
        ("f=/data/x-1", "/data/x-1"),
        ('f="a if b=c"', "a if b=c"),
    ],
)
def test_fixed_values(text: str, value: Value) -> None:
    found = fixed(text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("parent", "condition", "values"),
    [
        ("p=choice(sgd,adam,nesterov)", "p=sgd|nesterov", ("sgd", "nesterov")),
        ("p=choice(sgd,adam)", "p = sgd", ("sgd",)),
        ("p=int(1,5)", "p=3", (3,)),
        ("p=values(0.5,1)", "p=0.5|1", (0.5, 1)),
        ("p=choice(1,b)", "p=1", ("1",)),
        ("p=sgd", "p=sgd", ("sgd",)),
        ('p="1"', "p=1", ("1",)),
        ('p=choice("a|b",c)', 'p="a|b"', ("a|b",)),
    ],
)
def test_condition_has_the_type_of_its_parent(
    parent: str, condition: str, values: tuple[Value, ...]
) -> None:
    space = parse_space([f"x=float(0,1) if {condition}", parent])
    child = space.parameters[-1]
    assert (child.name, child.parent, child.parent_values) == ("x", "p", values)


@pytest.mark.parametrize(
    ("text", "example"),
    [
        ("", "lr=float(0,1)"),
        ("lr", "lr=float(0,1)"),
        ("lr=", "lr=float(0,1)"),
        ("=float(0,1)", "lr=float(0,1)"),
        ("lr=lgo(1e-4,1e-1)", "lr=log(1e-4,1e-1)"),
        ("lr=loguniform(1e-4,1e-1)", "lr=log(1e-4,1e-1)"),
        ("lr=log(1e-4)", "lr=log(1e-4,1e-1)"),
        ("lr=log(1e-4,1e-1", "lr=log(1e-4,1e-1)"),
        ("lr=log(1e-4,inf)", "lr=log(1e-4,1e-1)"),
        ("lr=log(1e-4,1e-1,log)", "lr=log(1e-4,1e-1)"),
        ("x=uniform(0,1)", "x=float(0,1)"),
        ("x=0,1", "x=float(0,1)"),
        ("n=int(1,many)", "n=int(32,256)"),
        ("n=integer(1,9)", "n=int(32,256)"),
        ("n=int(1,9,lin)", "n=int(32,256)"),
        ("n=int()", "n=int(32,256)"),
        ("act=relu,tanh", "act=choice(relu,tanh)"),
        ("act=[relu,tanh]", "act=choice(relu,tanh)"),
        ("act=categorical(relu,tanh)", "act=choice(relu,tanh)"),
        ("act=choice(a b,c)", "act=choice(relu,tanh)"),
        ('act=choice("\\q",c)', "act=choice(relu,tanh)"),
        ("b=discrete(16,32)", "b=values(16,32,64)"),
        ("b=values(16,many)", "b=values(16,32,64)"),
        ("m=float(0,1) if", "m=float(0,1)"),
        ("m=int(0,1) if optimizer", "m=int(0,1) if optimizer=sgd|nesterov"),
        ("m=int(0,1) if optimizer=sgd,adam", "m=int(0,1) if optimizer=sgd|nesterov"),
    ],
)
def test_wrong_text_shows_the_nearest_form(text: str, example: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_space([text])
    assert caught.value.message == f"cannot parse the parameter {text!r}"
    assert caught.value.hint == f"write it like '{example}'"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("lr=log(0,1)", "the log scale needs a positive minimum"),
        ("lr=float(1,0)", "the minimum 1.0 is above the maximum 0.0"),
        ("x=float(1,1)", "the minimum and the maximum are both 1.0"),
        ("b=values(2,1)", "discrete values must increase"),
        ("act=choice()", "it has no values"),
        ("1x=float(0,1)", "cannot be a flag"),
        ("epochs=3 if optimizer=sgd", "the fixed value of 'epochs' cannot have a condition"),
    ],
)
def test_invalid_parameter_shows_its_text(text: str, problem: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_space([text])
    assert problem in caught.value.message
    assert f"(in {text!r})" in caught.value.message


@pytest.mark.parametrize(
    "texts",
    [["a=float(0,1)", "a=int(0,9)"], ["a=float(0,1)", "a=1"], ["x=int(0,9)", "a=1", "a=2"]],
)
def test_repeated_names(texts: list[str]) -> None:
    with pytest.raises(SpecError, match="'a' is repeated"):
        parse_space(texts)


def test_only_fixed_values() -> None:
    with pytest.raises(SpecError, match="the search space is empty"):
        parse_space(["epochs=3"])


def test_constraints() -> None:
    space = parse_space(["a=int(1,9)", "b=int(1,9)"], ["a * b <= 9"])
    assert space.constraints == ("a * b <= 9",)


def text_of(parameter: Parameter) -> str:
    scale = [] if parameter.scale == "linear" else [parameter.scale]
    words = [word_of(value) for value in parameter.values]
    match parameter.kind:
        case "double":
            form, words = (*scale, "float")[0], [repr(parameter.low), repr(parameter.high)]
        case "integer":
            form, words = "int", [repr(parameter.low), repr(parameter.high), *scale]
        case "discrete":
            form, words = "values", [*words, *scale]
        case "categorical":
            form = "choice"
    text = f"{parameter.name}={form}({','.join(words)})"
    only = "|".join(map(word_of, parameter.parent_values))
    return f"{text} if {parameter.parent}={only}" if only else text


def word_of(value: Value) -> str:
    return json.dumps(value, ensure_ascii=False)


@given(spaces())
def test_every_space_has_a_text(space: SearchSpace) -> None:
    fixed_values = [f"{name}={word_of(value)}" for name, value in space.fixed.items()]
    parsed = parse_space([*map(text_of, space.parameters), *fixed_values])
    assert parsed == space
    assert parsed.to_json() == space.to_json()


@given(st.text(max_size=60), st.sampled_from(["", "x=", "x=choice(", "x=float(0,1) if "]))
def test_any_text_parses_or_is_a_spec_error(text: str, prefix: str) -> None:
    with contextlib.suppress(SpecError):
        parse_space([prefix + text])

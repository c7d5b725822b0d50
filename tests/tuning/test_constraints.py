from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timonel.errors import SpecError
from timonel.tuning.constraints import Constraint, Kind

KINDS: dict[str, Kind] = {"a": "number", "b": "number", "act": "text", "learning-rate": "number"}
VALUES: dict[str, Any] = {"a": 6, "b": 4, "act": "relu", "learning-rate": 0.5}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("a * b <= 24", True),
        ("a * b < 24", False),
        ("a + b == 10", True),
        ("a - b != 2", False),
        ("a / b > 1.4", True),
        ("a // b >= 2", False),
        ("a % b == 2", True),
        ("a ** 2 == 36", True),
        ("a ** -1 < 1", True),
        ("2 < b < a", True),
        ("2 < b < 3", False),
        ("not a < b", True),
        ("a < b or a == 6", True),
        ("a < b and a == 6", False),
        ("a > b and not (b > a or b == 5)", True),
        ("-a < 0", True),
        ("min(a, b, 9) == 4", True),
        ("max(a, b) == 6", True),
        ("abs(b - a) == 2", True),
        ("act == 'relu'", True),
        ('act != "relu"', False),
        ("learning_rate <= 0.5", True),
        ("  a > b  ", True),
        ("b == 0 or a % b == 2", True),
    ],
)
def test_expressions(text: str, holds: bool) -> None:
    assert Constraint(text, KINDS).holds(VALUES) is holds


def test_names() -> None:
    assert Constraint("a < 1 or act == 'a' or learning_rate > 1", KINDS).names == {
        "a",
        "act",
        "learning-rate",
    }


@pytest.mark.parametrize(
    "text",
    [
        "a / (b - 4) > 0",
        "a // (b - 4) > 0",
        "a % (b - 4) > 0",
        "0 ** -a > 0",
        "10.0 ** 999 > 0",
        "(-a) ** 0.5 > 0",
        "a ** a ** a ** a > 0",
        "2 ** 1000000000 > 0",
    ],
)
def test_impossible_computations_do_not_hold(text: str) -> None:
    assert not Constraint(text, KINDS).holds(VALUES)


def test_guards_are_evaluated_first() -> None:
    assert Constraint("b == 4 or 1 / (b - 4) > 0", KINDS).holds(VALUES)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is not an expression"),
        ("a <", "is not an expression"),
        ("a = 3", "is not an expression"),
        ("a < 1; b < 1", "is not an expression"),
        ("a < 1\0", "is not an expression"),
        ("a * b", "compares nothing"),
        ("'a'", "compares nothing"),
        ("c < 3", "contains the unknown name 'c'"),
        ("A < 3", "contains the unknown name 'A'"),
        ("__import__ < 3", "contains the unknown name '__import__'"),
        ("a < True", "contains True"),
        ("a == None", "contains None"),
        ("a < 3j", "contains 3j"),
        ("a == ...", "contains Ellipsis"),
        ("a == b'x'", "contains b'x'"),
        ("a.real < 3", "an unsupported form (Attribute)"),
        ("[a][0] < 3", "an unsupported form (Subscript)"),
        ("a in (1, 2)", "an unsupported form (Tuple)"),
        ("a is b", "an unsupported form (Is)"),
        ("a not in b", "an unsupported form (NotIn)"),
        ("a if b else a", "an unsupported form (IfExp)"),
        ("(lambda: a)() < 3", "an unsupported form (Call)"),
        ("(a := 3) < 4", "an unsupported form (NamedExpr)"),
        ("f'{a}' == 'x'", "an unsupported form (JoinedStr)"),
        ("~a < 3", "an unsupported form (UnaryOp)"),
        ("+a < 3", "an unsupported form (UnaryOp)"),
        ("a << 3 > 0", "an unsupported form (LShift)"),
        ("a & b > 0", "an unsupported form (BitAnd)"),
        ("a @ b > 0", "an unsupported form (MatMult)"),
        ("open('x') > 0", "calls 'open'"),
        ("pow(a, b) > 0", "calls 'pow'"),
        ("a(b) > 0", "calls 'a'"),
        ("min(a, default=3) > 0", "an unsupported form (Call)"),
        ("min(*a) > 0", "calls min with 1 values"),
        ("max(a, *b) > 0", "an unsupported form (Starred)"),
        ("min(a) > 0", "calls min with 1 values"),
        ("abs(a, b) > 0", "calls abs with 2 values"),
        ("act < 'x'", "orders a text"),
        ("act == 3", "compares a text with a number"),
        ("a < act", "compares a number with a text"),
        ("act * 3 == 'x'", "uses a text where a number is needed"),
        ("act + 'x' == 'x'", "uses a text where a number is needed"),
        ("(a < b) + 1 > 0", "uses a condition where a number is needed"),
        ("a and b", "uses a number where a condition is needed"),
        ("not a", "uses a number where a condition is needed"),
        ("(a < b) < (b < a)", "orders a condition"),
        ("a < " + "1 + " * 200 + "1", "is longer than 500 characters"),
        ("(" * 240 + "a" + ")" * 240 + " < 3", "is n"),
    ],
)
def test_refused_expressions(text: str, problem: str) -> None:
    with pytest.raises(SpecError) as caught:
        Constraint(text, KINDS)
    assert problem in caught.value.message
    assert repr(text) in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("learning_rat < 1", "did you mean 'learning_rate'?"),
        ("units < 1", "the parameters are a, b, act, learning_rate"),
        ("open('x') > 0", "it may call min, max, abs"),
        ("a * b", "write it like 'layers * units <= 1024'"),
    ],
)
def test_hints(text: str, hint: str) -> None:
    with pytest.raises(SpecError) as caught:
        Constraint(text, KINDS)
    assert caught.value.hint == hint


def test_deep_expressions_are_evaluated_or_refused() -> None:
    assert Constraint("-" * 300 + "a > 0", KINDS).holds(VALUES)
    with pytest.raises(SpecError, match=r"is nested too deeply|is not an expression"):
        Constraint("(" * 245 + "a" + ")" * 245 + ">0", KINDS)


NUMBERS = st.sampled_from(["a", "b", "1", "2.5", "learning_rate"])
EXPRESSIONS = st.recursive(
    NUMBERS,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "//", "%", "**"]), inner).map(
            lambda parts: f"({' '.join(parts)})"
        ),
        st.tuples(st.sampled_from(["min", "max"]), inner, inner).map(
            lambda parts: f"{parts[0]}({parts[1]}, {parts[2]})"
        ),
        inner.map(lambda part: f"abs({part})"),
        inner.map(lambda part: f"(-{part})"),
    ),
    max_leaves=8,
)


@given(EXPRESSIONS, st.sampled_from(["<", "<=", "==", "!=", ">", ">="]), EXPRESSIONS)
def test_agrees_with_python(left: str, comparison: str, right: str) -> None:
    text = f"{left} {comparison} {right}"
    if len(text) > 500 or text.count("**") > 2:
        return
    names = {"a": 6, "b": 4, "learning_rate": 0.5, "min": min, "max": max, "abs": abs}
    try:
        expected = bool(eval(text, {"__builtins__": {}}, names))
    except (ArithmeticError, TypeError):
        # Python compares no complex numbers, and neither side is a number then.
        expected = False
    found = Constraint(text, KINDS).holds(VALUES)
    assert found == expected or "**" in text


@given(st.text(max_size=40))
def test_any_text_compiles_or_is_a_spec_error(text: str) -> None:
    try:
        constraint = Constraint(text, KINDS)
    except SpecError:
        return
    assert constraint.holds(VALUES) in {True, False}

"""Constraints between parameters, such as ``layers * units <= 1024``, evaluated safely.

A constraint is a Python expression of names, numbers and strings with ``+ - * / // % **``,
comparisons, ``and``, ``or``, ``not`` and the functions ``min``, ``max`` and ``abs``. It is checked
and compiled to closures when the study is made; no code of the user is executed.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from timonel.errors import SpecError, did_you_mean

Kind: TypeAlias = Literal["number", "text", "condition"]

_MAX_LENGTH = 500
_MAX_BITS = 4096
"""Largest size of an integer power, so that no expression exhausts memory."""
_ARITHMETIC: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARISONS: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {"min": min, "max": max, "abs": abs}


def identifier(name: str) -> str:
    """Return a parameter's name as constraints write it: ``learning_rate`` for learning-rate."""
    return name.replace("-", "_").replace(".", "_")


class Constraint:
    """A compiled constraint. Immutable.

    Args:
        kinds: The kind of each parameter's values.
    """

    def __init__(self, text: str, kinds: Mapping[str, Kind]) -> None:
        compiler = _Compiler(text, kinds)
        self.text = text
        self._holds = compiler.compile()
        self.names: frozenset[str] = frozenset(compiler.names)
        """Parameters that the expression reads."""

    def holds(self, values: Mapping[str, Any]) -> bool:
        """Whether the values satisfy the constraint.

        A constraint that cannot be computed (a division by zero, an overflow) does not hold.
        """
        try:
            return bool(self._holds(values))
        except ArithmeticError:
            return False


@dataclass(frozen=True)
class _Term:
    """A compiled part of the expression, and the kind of its result."""

    kind: Kind
    evaluate: Callable[[Mapping[str, Any]], Any]


class _Compiler:
    def __init__(self, text: str, kinds: Mapping[str, Kind]) -> None:
        self.names: set[str] = set()
        self._text = text
        self._kinds = kinds
        self._known = {identifier(name): name for name in kinds}

    def compile(self) -> Callable[[Mapping[str, Any]], Any]:
        if len(self._text) > _MAX_LENGTH:
            raise self._error(f"is longer than {_MAX_LENGTH} characters", "write several")
        try:
            tree = ast.parse(self._text.strip(), mode="eval")
            term = self._term(tree.body)
        except (SyntaxError, ValueError) as error:
            raise self._error("is not an expression") from error
        except (RecursionError, MemoryError) as error:
            raise self._error("is nested too deeply", "write several") from error
        if term.kind != "condition":
            raise self._error("compares nothing")
        return term.evaluate

    def _term(self, node: ast.expr) -> _Term:
        match node:
            case ast.Constant(value=value):
                term = self._constant(value)
            case ast.Name(id=name):
                term = self._name(name)
            case ast.BoolOp(op=junction, values=operands):
                term = self._junction(operands, all if isinstance(junction, ast.And) else any)
            case ast.UnaryOp(op=ast.Not() | ast.USub() as op, operand=operand):
                term = self._unary(op, operand)
            case ast.BinOp(left=left, op=operation, right=right):
                term = self._arithmetic(left, operation, right)
            case ast.Compare(left=left, ops=ops, comparators=rights):
                term = self._comparison([left, *rights], ops)
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
                term = self._call(name, arguments)
            case _:
                raise self._unsupported(node)
        return term

    def _constant(self, value: object) -> _Term:
        if isinstance(value, str):
            return _Term("text", lambda _: value)
        # A bool is an int to Python.
        if type(value) in {int, float}:
            return _Term("number", lambda _: value)
        raise self._error(f"contains {value!r}", "use numbers and quoted texts")

    def _name(self, word: str) -> _Term:
        name = self._known.get(word)
        if name is None:
            raise self._error(
                f"contains the unknown name '{word}'",
                did_you_mean(word, self._known) or f"the parameters are {', '.join(self._known)}",
            )
        self.names.add(name)
        return _Term(self._kinds[name], lambda values: values[name])

    def _junction(self, nodes: list[ast.expr], join: Callable[..., bool]) -> _Term:
        parts = [self._operand(node, "condition") for node in nodes]
        return _Term("condition", lambda values: join(part(values) for part in parts))

    def _unary(self, op: ast.Not | ast.USub, node: ast.expr) -> _Term:
        kind: Kind = "condition" if isinstance(op, ast.Not) else "number"
        compute = operator.not_ if isinstance(op, ast.Not) else operator.neg
        inner = self._operand(node, kind)
        return _Term(kind, lambda values: compute(inner(values)))

    def _arithmetic(self, left: ast.expr, op: ast.operator, right: ast.expr) -> _Term:
        compute = _power if isinstance(op, ast.Pow) else _ARITHMETIC.get(type(op))
        if compute is None:
            raise self._unsupported(op)
        first, second = self._operand(left, "number"), self._operand(right, "number")
        return _Term("number", lambda values: compute(first(values), second(values)))

    def _comparison(self, nodes: list[ast.expr], ops: list[ast.cmpop]) -> _Term:
        terms = [self._term(node) for node in nodes]
        tests = []
        for op, left, right in zip(ops, terms, terms[1:], strict=False):
            test = _COMPARISONS.get(type(op))
            if test is None:
                raise self._unsupported(op)
            if left.kind != right.kind:
                raise self._error(f"compares a {left.kind} with a {right.kind}")
            if left.kind != "number" and not isinstance(op, ast.Eq | ast.NotEq):
                raise self._error(f"orders a {left.kind}", "compare it with == or !=")
            tests.append((test, left.evaluate, right.evaluate))
        return _Term(
            "condition",
            lambda values: all(test(left(values), right(values)) for test, left, right in tests),
        )

    def _call(self, name: str, nodes: list[ast.expr]) -> _Term:
        function = _FUNCTIONS.get(name)
        if function is None:
            raise self._error(f"calls '{name}'", f"it may call {', '.join(_FUNCTIONS)}")
        if (len(nodes) != 1) if name == "abs" else (len(nodes) < 2):
            needs = "one value" if name == "abs" else "two values or more"
            raise self._error(f"calls {name} with {len(nodes)} values", f"it takes {needs}")
        parts = [self._operand(node, "number") for node in nodes]
        return _Term("number", lambda values: function(*(part(values) for part in parts)))

    def _operand(self, node: ast.expr, kind: Kind) -> Callable[[Mapping[str, Any]], Any]:
        term = self._term(node)
        if term.kind != kind:
            raise self._error(f"uses a {term.kind} where a {kind} is needed")
        return term.evaluate

    def _unsupported(self, node: ast.AST) -> SpecError:
        return self._error(f"contains an unsupported form ({type(node).__name__})")

    def _error(self, problem: str, hint: str | None = None) -> SpecError:
        example = "write it like 'layers * units <= 1024'"
        return SpecError(f"the constraint {self._text!r} {problem}", hint=hint or example)


def _power(base: float, exponent: float) -> float:
    whole = isinstance(base, int) and isinstance(exponent, int)
    if whole and int(base).bit_length() * exponent > _MAX_BITS:
        raise OverflowError("the power is too large")
    result = base**exponent
    if isinstance(result, complex):
        raise ArithmeticError("the root of a negative number")  # noqa: TRY004 - no wrong type
    return float(result) if isinstance(result, float) else int(result)

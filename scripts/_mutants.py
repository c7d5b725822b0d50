"""Mutants of a source: one small change each. Pure; see `mutate`."""

from __future__ import annotations

import ast
import copy
import hashlib
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_SHOWN = 100


@dataclass(frozen=True)
class Mutant:
    """A change of a module.

    Attributes:
        id: Digest of the change and its place; independent of line numbers.
        module: Changed file, in ``src/timonel``.
        line: Line of the change.
        ordinal: Position among all changes of the module.
        before: Changed code.
        after: Code that replaces it.
    """

    id: str
    module: str
    line: int
    ordinal: int
    before: str
    after: str

    def __str__(self) -> str:
        change = f"{shorten(self.before)}  ->  {shorten(self.after)}"
        return f"{self.id}  src/timonel/{self.module}:{self.line}  {change}"


def mutants(text: str, module: str) -> list[Mutant]:
    """Return all mutants of a module.

    Args:
        text: Source of the module.
        module: ``FILE`` or ``FILE:CLASS``.
    """
    path, _, scope = module.partition(":")
    found: list[Mutant] = []
    seen: Counter[str] = Counter()
    for ordinal, (line, place, before, after) in enumerate(_changes(ast.parse(text))):
        key = f"{path}\n{place}\n{before}\n{after}"
        seen[key] += 1
        digest = hashlib.blake2s(f"{key}\n{seen[key]}".encode(), digest_size=4).hexdigest()
        if not scope or f"{place}.".startswith(f"{scope}."):
            found.append(Mutant(digest, path, line, ordinal, before, after))
    return found


def apply(text: str, mutant: Mutant) -> str:
    """Return the source of a module with the change of a mutant."""
    tree = ast.parse(text)
    # Stop here: the generator's next step would undo the change.
    next(itertools.islice(_changes(tree), mutant.ordinal, None))
    return ast.unparse(tree)


def sample(found: Iterable[Mutant], seed: int, count: int) -> list[Mutant]:
    """Return a random sample, in the order of the source.

    Most of the sample stays the same when other mutants are added or removed.
    """
    drawn = sorted(found, key=lambda each: hashlib.blake2s(f"{seed} {each.id}".encode()).digest())
    return sorted(drawn[:count], key=lambda each: (each.module, each.ordinal))


def _changes(tree: ast.AST, scope: str = "") -> Iterator[tuple[int, str, str, str]]:
    """Make one change at a time: yield its line, scope, and code before and after, then undo it."""
    for name, value in ast.iter_fields(tree):
        if name in {"annotation", "decorator_list", "returns"}:
            continue
        for index, node in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if not isinstance(node, ast.AST) or _is_skipped(node):
                continue
            # Show constants with the surrounding expression.
            whole = isinstance(node, ast.Constant) and isinstance(tree, _WITH_CONSTANTS)
            for replacement in alternatives(node):
                before = _code(tree if whole else node)
                _put(tree, name, index, replacement)
                yield node.lineno, scope, before, _code(tree if whole else replacement)
                _put(tree, name, index, node)
            inner = f"{scope}.{node.name}".lstrip(".") if isinstance(node, _SCOPES) else scope
            yield from _changes(node, inner)


_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_WITH_CONSTANTS = (ast.expr, ast.keyword, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Return)


def _put(parent: ast.AST, field: str, index: int | None, node: ast.AST) -> None:
    if index is None:
        setattr(parent, field, node)
    else:
        getattr(parent, field)[index] = node


def _is_skipped(node: ast.AST) -> bool:
    """Whether to skip a node: messages, assertions, and hints for type checkers."""
    match node:
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name)))):
            return name.lower().strip("_") in {"log", "logger", "logging"}
        case (
            ast.Raise()
            | ast.Assert()
            | ast.JoinedStr()
            | ast.If(test=ast.Name(id="TYPE_CHECKING"))
            | ast.Assign(targets=[ast.Name(id="__all__")])
            | ast.Subscript(value=ast.Name(id="Literal" | "Annotated"))
            | ast.keyword(arg="frozen" | "strict")  # checks of callers, as decorators are
        ):
            return True
    return False


_NEGATIONS = ((ast.Eq, ast.NotEq), (ast.Is, ast.IsNot), (ast.In, ast.NotIn))
_PAIRS = (
    *_NEGATIONS,
    *((ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.And, ast.Or), (ast.Add, ast.Sub)),
    (ast.Break, ast.Continue),
)
_SWAPS = {old: new for pair in _PAIRS for old, new in (pair, pair[::-1])}


def alternatives(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that replace ``node`` in mutants."""
    yield from _with_other_operator(node)
    yield from _with_other_value(node)
    match node:
        case ast.If(test=test) | ast.IfExp(test=test) if not _is_negatable(test):
            yield _with(node, test=ast.UnaryOp(ast.Not(), test))
        case ast.Return(value=ast.expr() as value) if not _is_false(value):
            yield ast.Return(ast.Constant(None))
        case (
            ast.Expr(value=ast.Call() | ast.Await() | ast.Yield() | ast.YieldFrom())
            | ast.Assign(targets=[ast.Attribute()])
            | ast.AugAssign(target=ast.Attribute())
            | ast.AnnAssign(target=ast.Attribute(), value=ast.expr())
        ):
            yield ast.Pass()


def _with_other_operator(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Compare(ops=operators):
            for index, operator in enumerate(operators):
                swapped = _SWAPS[type(operator)]()
                yield _with(node, ops=[*operators[:index], swapped, *operators[index + 1 :]])
        case ast.BoolOp(op=operator) | (
            ast.BinOp(op=ast.Add() | ast.Sub() as operator)
            | ast.AugAssign(op=ast.Add() | ast.Sub() as operator)
        ):
            yield _with(node, op=_SWAPS[type(operator)]())
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.Break() | ast.Continue():
            yield _SWAPS[type(node)]()


def _with_other_value(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Constant(value=bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(value=int() | float() as value):
            yield ast.Constant(value + 1)


def _is_negatable(test: ast.expr) -> bool:
    """Whether a change of the condition itself negates it."""
    match test:
        case ast.UnaryOp(op=ast.Not()):
            return True
        case ast.Compare(ops=[operator]):
            return any(isinstance(operator, pair) for pair in _NEGATIONS)
    return False


def _is_false(value: ast.expr) -> bool:
    """Whether a value is a literal that callers take for None."""
    return isinstance(value, ast.Constant) and value.value in {None, False}


def _with(node: ast.AST, **fields: object) -> ast.AST:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def _code(node: ast.AST) -> str:
    """Return the code of a node, without the body of a statement."""
    if isinstance(node, ast.If):
        return f"if {ast.unparse(node.test)}"
    return ast.unparse(node)


def shorten(code: str) -> str:
    """Return code as one line for a table."""
    line = " ".join(code.split())
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}..."

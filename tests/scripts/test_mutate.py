"""Mutants: operators, skipped code, IDs, samples and the report."""

from __future__ import annotations

from pathlib import Path

import _mutants
import mutate
import pytest

ROOT = Path(__file__).parents[2]


def changes(text: str) -> set[tuple[str, str]]:
    return {(each.before, each.after) for each in _mutants.mutants(text, "m.py")}


@pytest.mark.parametrize(
    ("text", "before", "after"),
    [
        ("a < b", "a < b", "a <= b"),
        ("a <= b < c", "a <= b < c", "a <= b <= c"),
        ("a is not b", "a is not b", "a is b"),
        ("a in b", "a in b", "a not in b"),
        ("a and b or c", "a and b", "a or b"),
        ("(a or b) and c", "a or b", "a and b"),
        ("not a", "not a", "a"),
        ("a + b", "a + b", "a - b"),
        ("a -= b", "a -= b", "a += b"),
        ("a = 2", "a = 2", "a = 3"),
        ("f(x=True)", "x=True", "x=False"),
        ("def f():\n    return x", "return x", "return None"),
        ("f(x)", "f(x)", "pass"),
        ("a.b = c", "a.b = c", "pass"),
        ("if a < b:\n    pass", "if a < b", "if not a < b"),
        ("a if b else c", "a if b else c", "a if not b else c"),
        ("for a in b:\n    break", "break", "continue"),
    ],
)
def test_operators(text: str, before: str, after: str) -> None:
    assert (before, after) in changes(text)


@pytest.mark.parametrize(
    "text",
    [
        '"""Words."""',
        "__all__ = [not_a_name + other]",
        "_logger.info(1 + 2)",
        "raise ValueError(1 + 2)",
        "assert a < b",
        'a = f"{b + 1}"',
        "a: f[1] = b",
        "def f(a: g[1]) -> g[2]: pass",
        "@f(True)\nclass A: pass",
        "if TYPE_CHECKING:\n    a = 1",
        "A = Literal[1]",
        "a = zip(b, c, strict=True)",
        "a = ConfigDict(frozen=True)",
        "def f():\n    return None",
        "a = 'word'",
    ],
)
def test_code_without_behaviour_has_no_mutants(text: str) -> None:
    assert changes(text) == set()


def test_a_negated_condition_is_one_mutant() -> None:
    assert changes("if a is b:\n    pass") == {("a is b", "a is not b")}
    assert changes("if not a:\n    pass") == {("not a", "a")}


def test_a_mutant_changes_one_place() -> None:
    text = "def f(a):\n    if a < 1:\n        return -a\n    return a\n"
    sources = [_mutants.apply(text, each) for each in _mutants.mutants(text, "m.py")]
    assert len(set(sources)) == len(sources)
    for source in sources:
        pairs = zip(text.splitlines(), source.splitlines(), strict=True)
        assert sum(old != new for old, new in pairs) == 1


def test_ids_do_not_depend_on_lines() -> None:
    text = "def f(a):\n    return a < 1\n"
    moved = f"# A comment.\nB = g()\n\n{text}"
    one, other = ({each.id for each in _mutants.mutants(each, "m.py")} for each in (text, moved))
    assert one == other


def test_equal_changes_in_one_function_have_different_ids() -> None:
    found = _mutants.mutants("def f(a):\n    g(a)\n    g(a)\n", "m.py")
    assert len({each.id for each in found}) == 2


def test_a_module_may_be_one_class() -> None:
    text = "class A:\n    def f(self):\n        return a\n\n\nclass B:\n    b = 1\n"
    assert [each.before for each in _mutants.mutants(text, "m.py:B")] == ["b = 1"]
    assert _mutants.mutants(text, "m.py:B")[0].id in {
        each.id for each in _mutants.mutants(text, "m.py")
    }


def test_a_choice_depends_on_the_seed_and_hardly_on_other_mutants() -> None:
    text = "\n".join(f"a{n} = {n}" for n in range(100))
    found = _mutants.mutants(text, "m.py")
    first, second = (_mutants.sample(found, seed, 30) for seed in (0, 1))
    assert first == _mutants.sample(found, 0, 30)
    assert first != second
    assert set(first) - set(_mutants.sample(found[:90], 0, 30)) <= set(found[90:])


def test_cores_name_files_that_exist() -> None:
    for core in mutate.CORES:
        for module in core.modules:
            assert (ROOT / "src" / "timonel" / module.partition(":")[0]).is_file()
        assert core.tests
        for path in core.tests:
            assert (ROOT / path).exists()


def test_a_report_lists_survivors_and_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    killed, survivor, same = _mutants.mutants("a = b | 1\nc = 2\nd = 3\n", "m.py")
    monkeypatch.setattr(mutate, "EQUIVALENT", {same.id: "nothing reads it"})
    core = mutate.Core("deciding", ("m.py",), ())
    result = mutate.Result(core, (killed,), (survivor,), (same,), 61.4)
    page = mutate.report([result], 0, 3)
    assert "| deciding | 1 | 1 | 1 | 50% | 61 s |" in page
    assert f"| {survivor.id} | m.py:2 | `c = 2` | `c = 3` |\n" in page
    assert f"| {same.id} | m.py:3 | `d = 3` | `d = 4` | nothing reads it |" in page

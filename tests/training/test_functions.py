from __future__ import annotations

import functools
import json
import linecache
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from timonel.errors import SpecError
from timonel.training import functions
from timonel.training.functions import by_value, call_of, check_call, reference, source_of

HERE = "tests.training.test_functions"
lock = threading.Lock()


def importable(x: int, *, y: int = 2) -> int:
    return x + y


class Holder:
    @staticmethod
    def inner(x: int) -> int:
        return x

    def method(self, x: int) -> int:
        return x


def locked() -> bool:
    return lock.locked()


def test_what_can_be_imported_is_named() -> None:
    assert reference(importable) == f"{HERE}:importable"
    assert reference(Holder.inner) == f"{HERE}:Holder.inner"
    call = call_of(importable, {"x": 1, "y": 2.5})
    assert (call.target, call.keywords, call.pickled) == (
        f"{HERE}:importable",
        {"x": 1, "y": 2.5},
        None,
    )


def closure(x: int) -> Any:
    return lambda: x + 1


@pytest.mark.parametrize(
    "function",
    [closure(1), functools.partial(importable, 1), Holder().method, np.mean],
    ids=["closure", "partial", "method", "decorated"],
)
def test_what_cannot_be_imported_has_no_name(function: Any) -> None:
    if function is not np.mean:
        assert reference(function) is None
    call = call_of(function, {})
    assert (call.target is None) == (call.pickled is not None)


def test_a_closure_travels_by_value() -> None:
    call = call_of(closure(41), {})
    assert call.pickled is not None
    function, keywords = pickle.loads(call.pickled)
    assert function(**keywords) == 42


@pytest.mark.process
def test_a_function_of_main_runs_in_another_process(tmp_path: Path) -> None:
    script = tmp_path / "main.py"
    script.write_text(
        "from timonel.training.functions import call_of\n"
        "factor = 3\n"
        "def scaled(x): return x * factor\n"
        f"open({str(tmp_path / 'call')!r}, 'wb').write(call_of(scaled, {{'x': 4}}).pickled)\n"
    )
    subprocess.run([sys.executable, script], check=True)
    function, keywords = pickle.loads((tmp_path / "call").read_bytes())
    assert function(**keywords) == 12


@pytest.mark.parametrize(
    ("keywords", "is_json"),
    [({"a": [1, 2.5, None, "x"]}, True), ({"a": (1,)}, False), ({"a": np.float32(1)}, False),
     ({"a": float("nan")}, False), ({"a": {1: 2}}, False)],
)  # fmt: skip
def test_keywords_come_as_they_were_given(keywords: dict[str, Any], is_json: bool) -> None:
    call = call_of(importable, keywords)
    if is_json:
        assert json.loads(json.dumps(call.keywords)) == keywords
    else:
        assert call.pickled is not None
        function, given = pickle.loads(call.pickled)
        assert function is importable  # named, all the same
        assert given.keys() == keywords.keys()
        assert type(given["a"]) is type(keywords["a"])


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({}, r"\(none\) do not match .*: missing a required argument: 'x'"),
        ({"x": 1, "z": 2}, r"\(x, z\) do not match .* unexpected keyword argument 'z'"),
    ],
)
def test_keywords_that_do_not_fit(keywords: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        check_call(importable, keywords)


def test_keywords_that_fit() -> None:
    check_call(importable, {"x": 1})
    check_call(lambda **options: options, {"anything": 1})
    check_call(dict, {"a": 1})  # says nothing of its arguments


@pytest.mark.parametrize("name", ["lock", "opened"])
def test_what_cannot_travel_is_named(name: str, tmp_path: Path) -> None:
    namespace: dict[str, Any] = {"lock": lock}
    exec("def f(): return lock", namespace)
    function = namespace["f"] if name == "lock" else closure(1)
    with (tmp_path / "x").open("w") as opened:
        keywords = {} if name == "lock" else {"opened": opened}
        with pytest.raises(SpecError, match=f"refers to '{name}' .* cannot be pickled") as caught:
            by_value(function, keywords)
    assert "\n" not in str(caught.value)
    assert call_of(locked, {}).target  # its module makes a lock of its own


def test_where_a_functions_lines_are(monkeypatch: pytest.MonkeyPatch) -> None:
    # As Python 3.13 does for 'python -c'.
    monkeypatch.setitem(linecache.cache, "<string>", (5, None, ["other\n"], "<string>"))
    for function in (importable, functools.partial(importable, 1), Holder().method):
        assert source_of(function) == (__file__, Path(__file__).read_text())
    assert source_of(len) == ("<len>", "")
    assert source_of(eval("lambda: 1")) == ("<string>", "")


def test_where_modules_are_looked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "path", ["", str(tmp_path), *sys.path])
    found = functions.import_path()
    assert found[:2] == (str(Path.cwd()), str(tmp_path))
    assert not [place for place in found if place.startswith(sys.prefix)]

"""Programs of each kind, run in this process as a task runs them."""

from __future__ import annotations

import json
import linecache
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.training.worker.tracebacks import without_carets
from timonel.training.functions import call_of
from timonel.training.spec import TrainSpec
from timonel.training.worker import exit_report
from timonel.training.worker.program import run_program


@pytest.fixture(autouse=True)
def interpreter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Give back what running a program takes over."""
    modules = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    yield
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def run(entry: str, script: Path, *argv: str, **fields: Any) -> Any:
    keywords = fields.pop("more", {})
    spec = TrainSpec(run_id="r", workspace="/w", entry=entry, script=str(script), **fields)  # type: ignore[arg-type] # one of its kinds
    return run_program(spec, [str(script), *argv], keywords)


def main() -> dict[str, Any]:
    return vars(sys.modules["__main__"])


def shown(error: BaseException, script: Path) -> str:
    text = exit_report.of_exception(error, script=str(script), peers=0).traceback
    assert text is not None
    return text


def notebook(path: Path, *sources: str) -> Path:
    cells = [{"cell_type": "code", "source": source} for source in sources]
    path.write_text(json.dumps({"nbformat": 4, "cells": cells}))
    return path


def test_a_script_has_its_own_future(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("def f(x: int): pass\nkind = f.__annotations__['x']\n")
    run("script", script)
    assert main()["kind"] is int  # not a text, as where annotations are postponed
    assert main()["__name__"] == "__main__"


def test_a_notebook(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "beside.py").write_text("value = 3\n")
    place = notebook(
        tmp_path / "train.ipynb",
        "%matplotlib inline\n!ls\nimport sys\nimport beside",
        "display(beside.value)\nassert get_ipython() is None\nargv = sys.argv",
    )
    with caplog.at_level(logging.INFO):
        run("notebook", place, "--epochs=2")
    assert main()["argv"] == [str(place), "--epochs=2"]
    assert caplog.messages == ["Cell 1: skipped !ls"]


def test_a_notebook_awaits_and_keeps_its_last_value(tmp_path: Path) -> None:
    place = notebook(
        tmp_path / "train.ipynb",
        "import asyncio\nqueue = asyncio.Queue()",
        "await queue.put(3)\nawait queue.get()",
        "None",
        "kept = _\nresult = await asyncio.sleep(0, 4)",
    )
    run("notebook", place)
    assert (main()["kept"], main()["result"]) == (3, 4)


def test_magics_of_a_notebooks_own(tmp_path: Path) -> None:
    place = notebook(
        tmp_path / "train.ipynb",
        "from IPython.core.magic import register_cell_magic, register_line_magic\n"
        "@register_cell_magic\n"
        "def write_and_run(line, cell):\n"
        "    pathlib.Path(line).write_text(cell)\n"
        "    get_ipython().run_cell(cell)\n"
        "@register_line_magic('twice')\n"
        "def double(line):\n"
        "    doubled.append(2 * line)",
        "import pathlib\ndoubled = []",
        f"%%write_and_run {tmp_path / 'model.py'}\nanswer = 42\n!ls",
        "if answer:\n    %twice ab",
    )
    run("notebook", place)
    assert (main()["answer"], main()["doubled"]) == (42, ["abab"])
    assert (tmp_path / "model.py").read_text() == "answer = 42\n!ls"


def test_an_error_in_a_cell_names_the_cell_and_the_line(tmp_path: Path) -> None:
    place = notebook(
        tmp_path / "train.ipynb", "!ls\ndef f():\n    raise ValueError('mine')", "x = 1\nf()"
    )
    with pytest.raises(ValueError) as caught:
        run("notebook", place)
    assert without_carets(shown(caught.value, place)) == (
        "Traceback (most recent call last):\n"
        f'  File "{place}, cell 2", line 2, in <module>\n'
        "    f()\n"
        f'  File "{place}, cell 1", line 3, in f\n'
        "    raise ValueError('mine')\n"
        "ValueError: mine\n"
    )


def test_a_mistake_in_the_syntax_of_a_cell(tmp_path: Path) -> None:
    place = notebook(tmp_path / "train.ipynb", "x = 1", "x = = 1")
    with pytest.raises(SyntaxError) as caught:
        run("notebook", place)
    text = shown(caught.value, place)
    assert text.startswith(f'  File "{place}, cell 2", line 1')
    assert "timonel" not in text.replace(str(place), "")


def test_autograph_reads_a_cell(tmp_path: Path) -> None:
    place = notebook(
        tmp_path / "train.ipynb",
        "import tensorflow as tf\n"
        "@tf.function\n"
        "def total(n):\n"
        "    result = 0\n"
        "    for i in tf.range(n):\n"
        "        if i > 2:\n"
        "            result += i\n"
        "    return result",
        "found = int(total(tf.constant(5)))",
    )
    run("notebook", place)
    assert main()["found"] == 7


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "pkg"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "beside.py").write_text("value = 3\n")
    return folder


def test_a_module_imports_what_is_beside_it(package: Path) -> None:
    (package / "train.py").write_text(
        "import sys\nfrom .beside import value\nfound = value, __package__, sys.argv, sys.path[0]\n"
    )
    run("module", package / "train.py", "--epochs=2", target="pkg.train")
    argv = [str(package / "train.py"), "--epochs=2"]
    assert main()["found"] == (3, "pkg", argv, str(package.parent))


def test_a_package_that_can_be_run(package: Path) -> None:
    (package / "__main__.py").write_text("found = __package__, __spec__.name\n")
    run("module", package / "__main__.py", target="pkg")
    assert main()["found"] == ("pkg", "pkg.__main__")


def test_an_error_in_a_package_before_the_modules_first_line(package: Path) -> None:
    (package / "__init__.py").write_text("import absent_package\n")
    (package / "train.py").touch()
    with pytest.raises(ModuleNotFoundError) as caught:
        run("module", package / "train.py", target="pkg.train")
    text = shown(caught.value, package / "train.py")
    assert f'File "{package / "__init__.py"}", line 1' in text
    assert "timonel/training" not in text
    assert "frozen" not in text


def test_a_function_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "mine.py").write_text(
        "class C:\n    @staticmethod\n    def f(x, job_dir):\n        return x, job_dir\n"
    )
    value = run(
        "function",
        tmp_path / "code" / "mine.py",
        target="mine:C.f",
        keywords={"x": 1},
        import_path=(str(tmp_path / "code"),),
        more={"job_dir": "/job"},
    )
    assert value == (1, "/job")


def test_a_function_by_value_keeps_the_lines_that_no_file_has(tmp_path: Path) -> None:
    name = "<cell>"
    text = "def f(x):\n    raise ValueError(x)\n"
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(text, name, "exec"), namespace)
    call = call_of(namespace["f"], {"x": "mine"})
    assert call.pickled is not None
    (tmp_path / "function.pkl").write_bytes(call.pickled)
    (tmp_path / "source.py").write_text(text)
    linecache.cache.pop(name, None)
    with pytest.raises(ValueError) as caught:
        run(
            "function",
            Path(name),
            pickled=str(tmp_path / "function.pkl"),
            source=str(tmp_path / "source.py"),
        )
    assert shown(caught.value, Path(name)) == (
        "Traceback (most recent call last):\n"
        '  File "<cell>", line 2, in f\n'
        "    raise ValueError(x)\n"
        "ValueError: mine\n"
    )

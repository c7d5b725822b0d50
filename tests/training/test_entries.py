from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from timonel.errors import NotFoundError, SpecError
from timonel.training.entries import Program, find_program


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def find(entry: Any, **environ: str) -> Program:
    return find_program(entry, environ)


def notebook(path: Path, *sources: str) -> Path:
    cells = [{"cell_type": "code", "outputs": [3], "source": source} for source in sources]
    path.write_text(json.dumps({"nbformat": 4, "nbformat_minor": 5, "cells": cells}))
    return path


def package(here: Path, **files: str) -> None:
    """Make a package that fails when it is imported: finding it must not."""
    (here / "pkg" / "inner").mkdir(parents=True)
    (here / "pkg" / "__init__.py").write_text("raise RuntimeError('imported')\n")
    for name, text in files.items():
        (here / "pkg" / "inner" / f"{name}.py").write_text(text)


def test_a_script(here: Path) -> None:
    (here / "train.py").write_text("import keras\n")
    found = find("train.py")
    assert (found.kind, found.file, found.name) == ("script", str(here / "train.py"), "train.py")
    assert found.source == b"import keras\n"
    assert found.folder == found.working_dir == here
    assert find(here / "train.py") == found


def test_a_notebook_runs_in_its_own_folder_as_in_jupyter(here: Path) -> None:
    (here / "notes").mkdir()
    place = notebook(here / "notes" / "train.ipynb", "%matplotlib inline\nimport keras")
    found = find("notes/train.ipynb")
    assert (found.kind, found.file, found.source_name) == ("notebook", str(place), "train.ipynb")
    assert found.working_dir == here / "notes"
    assert json.loads(found.source)["cells"][0]["outputs"] == []


def test_a_module_is_found_and_not_imported(here: Path) -> None:
    package(here, train="x = 1\n", __main__="x = 2\n")
    found = find("pkg.inner.train")
    assert (found.kind, found.name) == ("module", "pkg.inner.train")
    assert found.file == str(here / "pkg" / "inner" / "train.py")
    assert found.source == b"x = 1\n"
    assert find("pkg.inner").file == str(here / "pkg" / "inner" / "__main__.py")
    assert "pkg" not in sys.modules


def test_a_file_comes_before_a_module(here: Path) -> None:
    (here / "train").write_text("x = 1\n")
    (here / "train.py").write_text("x = 2\n")
    assert find("train").kind == "script"
    (here / "train").unlink()
    assert find("train").kind == "module"


@pytest.mark.parametrize(
    ("entry", "error", "words"),
    [
        ("absent.py", NotFoundError, r"no script at .*absent\.py:"),
        ("absent.ipynb", NotFoundError, "no script at"),
        ("pkg.absent", NotFoundError, r"and no module pkg\.absent"),
        ("pkg.inner.train.deeper", NotFoundError, "and no module"),
        ("no/such/file", NotFoundError, "no script at"),
        ("", SpecError, "is a folder"),
        (".", SpecError, "is a folder"),
        ("data", SpecError, "is a folder"),
        ("pkg", SpecError, "the package pkg has no __main__"),
        ("math", SpecError, "the module math has no Python source"),
        ("empty.ipynb", SpecError, "no cell of empty.ipynb has code"),
        ("bad.ipynb", SpecError, r"bad\.ipynb is not a notebook"),
    ],
)
def test_what_cannot_be_run(here: Path, entry: str, error: type[Exception], words: str) -> None:
    package(here, train="")
    (here / "data").mkdir()
    notebook(here / "empty.ipynb", " \n")
    (here / "bad.ipynb").write_text("{}")
    with pytest.raises(error, match=words):
        find(entry)


LEGACY = "import tf_keras as keras"


def legacy_by_its_globals() -> object:
    return module.Model()  # noqa: F821 - put in by the test


def legacy_by_its_text() -> None:
    import tf_keras  # noqa: F401


@pytest.mark.parametrize("text", ["import keras", LEGACY])
def test_which_keras_each_kind_uses(here: Path, text: str) -> None:
    expected = "tf_keras" if text == LEGACY else "keras"
    (here / "train.py").write_text(text)
    package(here, train=text)
    notebook(here / "train.ipynb", "%matplotlib inline\nx = 1", f"!ls\n{text}")
    for entry in ("train.py", "train.ipynb", "pkg.inner.train"):
        assert find(entry).keras == expected, entry
        assert find(entry, TF_USE_LEGACY_KERAS="1").keras == "tf_keras"
        assert find(entry, TF_USE_LEGACY_KERAS="0").keras == "keras"


def test_which_keras_a_function_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    namespace: dict[str, Any] = {"module": sys}
    exec("def plain(): return module.Model()", namespace)
    assert find(namespace["plain"]).keras == "keras"
    stand_in = type(sys)("tf_keras.models")
    namespace["module"] = stand_in
    assert find(namespace["plain"]).keras == "tf_keras"
    assert find(lambda: stand_in).keras == "tf_keras"
    # Its file names tf_keras, in another function; a whole file is one program, as a script is.
    assert find(legacy_by_its_text).keras == "tf_keras"


def test_a_function(here: Path) -> None:
    found = find(legacy_by_its_text)
    assert (found.kind, found.name) == ("function", "legacy_by_its_text")
    assert found.file == __file__
    assert found.source == Path(__file__).read_bytes()
    assert found.source_name == "test_entries.py"
    assert found.working_dir == here


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import os, keras\nos.environ['TF_ENABLE_ONEDNN_OPTS'] = '0'", False),
        ("import os\nos.environ['TF_ENABLE_ONEDNN_OPTS'] = '0'\nimport keras", True),
        ("import os\nos.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'\nimport tensorflow as tf", False),
        ("import os\nos.environ.setdefault('KERAS_HOME', 'k')\nfrom keras import layers", True),
        ("from os import environ\nenviron.update(X='1')\nimport tensorflow.keras", True),
        ("import os\nos.putenv('X', '1')\nimport mine", True),
        ("import os\nprint(os.environ['X'])\nimport keras", False),
        ("def f(:", False),
    ],
)
def test_whether_a_program_sets_the_environment_first(
    here: Path, text: str, expected: bool
) -> None:
    (here / "train.py").write_text(text)
    assert find("train.py").sets_environment == expected


@pytest.mark.parametrize(
    ("text", "module", "expected"),
    [
        ("import settings\nimport keras", "settings.py", True),
        ("import keras\nimport settings", "settings.py", False),
        ("from mine import first\nimport keras", "mine/first.py", True),
        ("import mine.first", "mine/__init__.py", True),
        ("import others", "settings.py", False),
    ],
)
def test_modules_of_the_folder_may_set_the_environment(
    here: Path, text: str, module: str, expected: bool
) -> None:
    (here / "mine").mkdir()
    (here / module).write_text("import os, train\nos.environ['KERAS_HOME'] = 'k'")
    (here / "train.py").write_text(text)
    assert find("train.py").sets_environment == expected


def test_other_backends_of_keras_are_refused(here: Path) -> None:
    (here / "train.py").write_text("import keras")
    with pytest.raises(SpecError, match="TensorFlow backend, got KERAS_BACKEND=jax"):
        find("train.py", KERAS_BACKEND="jax")

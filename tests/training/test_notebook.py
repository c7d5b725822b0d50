from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timonel.errors import SpecError
from timonel.training.notebook import place_of, read_cells, without_outputs


def write(path: Path, *sources: Any, **changes: Any) -> Path:
    """Write a notebook with these cells of code."""
    cells = [{"cell_type": "code", "metadata": {}, "outputs": [], "source": s} for s in sources]
    content = {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": cells, **changes}
    path.write_text(json.dumps(content))
    return path


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "train.ipynb"


def translated(place: Path, source: str) -> tuple[str, tuple[str, ...]]:
    (cell,) = read_cells(write(place, source))
    assert cell.source == source
    return cell.code, cell.left_out


def test_cells_are_counted_as_a_kernel_counts_them(place: Path) -> None:
    write(place, "a = 1", "", ["b = 2\n", "c = 3"])
    content = json.loads(place.read_text())
    content["cells"].insert(0, {"cell_type": "markdown", "source": "# %title"})
    place.write_text(json.dumps(content))
    assert [(cell.number, cell.code) for cell in read_cells(place)] == [
        (1, "a = 1"),
        (2, "b = 2\nc = 3"),
    ]
    assert place_of("x.ipynb", 2) == "x.ipynb, cell 2"


@pytest.mark.parametrize(
    ("source", "code", "left_out"),
    [
        ("%matplotlib inline\nx = 1", "pass\nx = 1", ()),
        ("%load_ext autoreload\n%autoreload 2", "pass\npass", ()),
        ("%pip install a\nx = 1", "pass\nx = 1", ("%pip install a",)),
        ("if x:\n    !ls -l\ny = 1", "if x:\n    pass\ny = 1", ("!ls -l",)),
        ("%time x = 1", "x = 1", ()),
        ("%%time\nx = 1", "\nx = 1", ()),
        ("%%bash\nls", "", ("%%bash and what follows it",)),
        ("%%writefile a.py\nx = 1", "", ("%%writefile and what follows it",)),
        ("x?\n?x\ny = 1", "pass\npass\ny = 1", ()),
        ("%env A=b c\n", "__import__('os').environ['A'] = 'b c'\n", ()),
        (
            "%cd 'a b'\n",
            "__import__('os').chdir(__import__('os').path.expanduser('a b'))\n",
            (),
        ),
        ("%env A\n", "print(__import__('os').environ['A'])\n", ()),
        ("%env A={b}/$c\n", "__import__('os').environ['A'] = f'{b}/{c}'\n", ()),
        ("%set_env A={\n", "__import__('os').environ['A'] = '{'\n", ()),
        ("!pip install a \\\n    b \\\n    c\nx = 1", "pass\n\n\nx = 1", ("!pip install a b c",)),
        ("%env A=b \\\n  c\nx = 1", "__import__('os').environ['A'] = 'b c'\n\nx = 1", ()),
        # Python's own: a remainder, a text, a continued line.
        ("x = (7\n  % 4)\n%who", "x = (7\n  % 4)\npass", ("%who",)),
        ('x = """\n!ls\n%pip\n"""\n!ls', 'x = """\n!ls\n%pip\n"""\npass', ("!ls",)),
        ("x = 7 \\\n% 4\n!ls", "x = 7 \\\n% 4\npass", ("!ls",)),
        ("x = [\n!ls\n", "x = [\n!ls\n", ()),  # wrong in Python, too: shown as Python shows it
    ],
)
def test_what_is_not_python(place: Path, source: str, code: str, left_out: tuple[str, ...]) -> None:
    assert translated(place, source) == (code, left_out)


@pytest.mark.parametrize("line", ["files = !ls", "a, b = !pwd", "where = %pwd"])
def test_a_value_from_the_shell_is_refused(place: Path, line: str) -> None:
    with pytest.raises(SpecError, match=r"cell 2 of train\.ipynb assigns"):
        read_cells(write(place, "x = 1", f"y = 1\n{line}"))


def test_captured_output_that_is_used_is_refused(place: Path) -> None:
    with pytest.raises(SpecError, match=r"cell 1 of train\.ipynb captures its output as out"):
        read_cells(write(place, "%%capture --no-stderr out\nprint(1)", "out.show()"))
    assert translated(place, "%%capture out\nx = 1") == ("\nx = 1", ())


@given(lines=st.lists(st.sampled_from(["x = 1", "%time y = 2", "!ls", "if x:\n    %cd z", "# !a"])))
def test_lines_stay_where_they_are(
    lines: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    source = "\n".join(lines)
    for cell in read_cells(write(tmp_path_factory.getbasetemp() / "lines.ipynb", source)):
        ast.parse(cell.code)
        assert cell.code.count("\n") == source.count("\n")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1", "is not a notebook"),
        ("[]", "is not a notebook"),
        ('{"nbformat": 4}', "no 'cells'"),
        ('{"nbformat": 4, "cells": 3}', "not a list"),
        ('{"nbformat": 3, "worksheets": []}', "notebook format 3"),
        (
            '{"nbformat": 4, "cells": [], "metadata": {"kernelspec": {"language": "R"}}}',
            "a notebook in r, not in Python",
        ),
        ('{"nbformat": 4, "cells": [{"source": "x"}]}', "no type or no source"),
        ('{"nbformat": 4, "cells": [{"cell_type": "code", "source": 3}]}', "no type or no source"),
    ],
)
def test_what_is_no_notebook(place: Path, text: str, words: str) -> None:
    place.write_text(text)
    with pytest.raises(SpecError, match=words):
        read_cells(place)


def test_running_a_notebook_does_not_change_its_record(place: Path) -> None:
    before = without_outputs(write(place, "x = 1"))
    content = json.loads(place.read_text())
    content["cells"][0].update(outputs=[{"text": "a secret"}], execution_count=7)
    place.write_text(json.dumps(content))
    assert without_outputs(place) == before
    assert b"secret" not in before

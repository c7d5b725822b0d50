from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timonel.errors import SpecError
from timonel.training.entries import find_program
from timonel.training.kubeflow.mpi_program import check_program, uses_of_mpi


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import horovod.tensorflow.keras as hvd", ["horovod"]),
        ("def main():\n    from mpi4py import MPI", ["mpi4py"]),
        ("import os, horovod", ["horovod"]),
        ("rank = os.environ['OMPI_COMM_WORLD_RANK']", ["OMPI_COMM_WORLD_RANK"]),
        ("import keras\nfrom .horovod import x\n# import horovod\nname = 'horovod'", []),
        ("not Python", []),
    ],
)
def test_uses_of_mpi(text: str, found: list[str]) -> None:
    assert [name for _, name, _ in uses_of_mpi(text)] == found


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    list(uses_of_mpi(text))


def test_scripts_and_notebooks_are_refused_with_a_cure(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import keras\nimport horovod.tensorflow.keras as hvd\n")
    with pytest.raises(SpecError, match=r"train\.py uses horovod \(line 2\)") as error:
        check_program(find_program(script, {}))
    assert "plain Keras" in (error.value.hint or "")
    notebook = tmp_path / "train.ipynb"
    cell = {"cell_type": "code", "source": ["from mpi4py import MPI"], "metadata": {}}
    notebook.write_text(json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4}))
    with pytest.raises(SpecError, match="uses mpi4py") as error:
        check_program(find_program(notebook, {}))
    assert "--launcher mpi" in (error.value.hint or "")

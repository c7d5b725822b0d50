from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timonel.errors import SpecError
from timonel.training.kubeflow.commands import ProgramCommand, expand, parse_command


@pytest.mark.parametrize(
    ("command", "found"),
    [
        (["python", "/app/train.py"], ProgramCommand("script", "/app/train.py")),
        (["/usr/bin/python3.12", "train.py", "-x"], ProgramCommand("script", "train.py", ("-x",))),
        (["python3", "-u", "-m", "a.b", "1"], ProgramCommand("module", "a.b", ("1",))),
        (["sh", "-c", "python t.py 'a b'"], ProgramCommand("script", "t.py", ("a b",))),
        (["/bin/bash", "-c", "exec python -m t"], ProgramCommand("module", "t")),
    ],
)
def test_python_programs(command: list[str], found: ProgramCommand) -> None:
    assert parse_command(command, "Worker") == found


@pytest.mark.parametrize(
    ("command", "part"),
    [
        ([], "Worker has no command"),
        (["nvidia-smi"], "Worker does not run Python, but 'nvidia-smi'"),
        (["sh", "-c", "pip install x && python t.py"], "does not run Python"),
        (["sh", "-c", "python t.py '"], "does not run Python"),
        (["python"], "runs no script or module"),
        (["python", "-c", "print(1)"], "runs no script or module"),
        (["python", "-m"], "runs no script or module"),
    ],
)
def test_other_commands_are_refused_with_a_cure(command: list[str], part: str) -> None:
    with pytest.raises(SpecError, match="Worker") as error:
        parse_command(command, "Worker")
    assert part in str(error.value)
    assert "timonel train SCRIPT -f FILE" in (error.value.hint or "")


@given(st.lists(st.text()))
def test_any_command_is_parsed_or_refused(command: list[str]) -> None:
    with contextlib.suppress(SpecError):
        assert parse_command(command, "Worker").name


def test_variables_are_expanded_as_kubernetes_does() -> None:
    env = {"A": "1", "B_C": "$(A)"}
    assert expand("$(A)-$(B_C)-$(X)-$$(A)-$A-$", env) == "1-$(A)-$(X)-$(A)-$A-$"

"""Completion of names at the Tab key: what is offered, and in the shells that are installed."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer

from tests.models.conftest import FORMAT_1
from timonel.cli import completion
from timonel.cli.main import app
from timonel.storage import find_workspace
from timonel.tracking import Artifact, start_run


@pytest.fixture
def work(here: Path) -> Path:
    """A folder whose workspace has two runs, a dataset and two versions of a model."""
    workspace = find_workspace(here / ".timonel")
    for name in ("baseline", "wider"):
        with start_run(workspace, "train", name=name):
            pass
    with start_run(workspace, "convert") as run:
        run.output(Artifact("dataset", here / "data" / "cats", "sha256:" + "ab" * 32))
    for number in (1, 2):
        shutil.copytree(FORMAT_1 / "export", here / ".timonel" / "models" / "cats" / str(number))
    return here


@pytest.fixture
def shell_environment(work: Path) -> dict[str, str]:
    """Variables of a shell that finds ``timonel``."""
    (work / "bin").mkdir()
    program = work / "bin" / "timonel"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m timonel "$@"\n')
    program.chmod(0o755)
    path = f"{work / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "HOME": str(work), "TERM": "dumb"}


@pytest.mark.parametrize(
    ("completer", "incomplete", "expected"),
    [
        ("runs", "b", ["baseline"]),
        ("runs", "l", ["last"]),
        ("models", "c", ["cats", "cats/1", "cats/2"]),
        ("model_names", "", ["cats"]),
        ("datasets", "", ["data/cats"]),
        ("studies", "", ["last"]),
        ("endpoints", "", []),
    ],
)
def test_names_of_the_workspace(
    completer: str, incomplete: str, expected: list[str], work: Path
) -> None:
    context = typer.Context(typer.main.get_command(app))
    assert getattr(completion, completer)(context, incomplete) == expected


def test_without_a_workspace_nothing_is_offered_or_made(here: Path) -> None:
    context = typer.Context(typer.main.get_command(app))
    assert completion.runs(context, "") == []
    context.params["workspace"] = str(here / "elsewhere")
    assert completion.models(context, "") == []
    assert list(here.iterdir()) == []


def needs(shell: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(shell) is None, reason=f"{shell} is not installed")


BASH = """
eval "$(timonel --show-completion bash)"
COMP_WORDS=(timonel {words}); COMP_CWORD={last}
_timonel_completion timonel
echo "${{COMPREPLY[@]}}"
"""


@pytest.mark.process
@needs("bash")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("runs show ba", ["baseline"]),
        ("models show cats/", ["cats/1", "cats/2"]),
        ("endp", ["endpoints"]),
        ("train --wor", ["--workers"]),
    ],
)
def test_bash(words: str, expected: list[str], shell_environment: dict[str, str]) -> None:
    script = BASH.format(words=words, last=len(words.split()))
    done = subprocess.run(
        ["bash", "--norc", "-c", script], env=shell_environment, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert done.stdout.split() == expected


@pytest.mark.process
@needs("fish")
def test_fish(shell_environment: dict[str, str]) -> None:
    script = "timonel --show-completion fish | source; complete -C 'timonel runs show ba'"
    done = subprocess.run(
        ["fish", "--no-config", "-c", script], env=shell_environment, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["baseline"]


@pytest.mark.process
@needs("zsh")
def test_zsh(shell_environment: dict[str, str]) -> None:
    setup = (
        "PS1='> '; autoload -Uz compinit; compinit -u; timonel --show-completion zsh > c.zsh; "
        'source c.zsh; echo "LOADED"$?\n'
    )
    # Completion needs a line editor, and that a terminal.
    terminal, inner = pty.openpty()
    with subprocess.Popen(
        ["zsh", "-f"], env=shell_environment, stdin=inner, stdout=inner, stderr=inner,
        start_new_session=True,
    ) as zsh:  # fmt: skip
        os.close(inner)
        os.write(terminal, setup.encode())
        read_until(terminal, "LOADED0")
        os.write(terminal, b"timonel runs show ba\t")
        read_until(terminal, "baseline")
        zsh.kill()
    os.close(terminal)


def read_until(terminal: int, text: str, timeout_s: float = 60.0) -> None:
    """Read what a terminal shows until a text comes."""
    shown, deadline = "", time.monotonic() + timeout_s
    while text not in shown:
        assert time.monotonic() < deadline, shown
        if select.select([terminal], [], [], 1.0)[0]:
            shown += os.read(terminal, 4096).decode(errors="replace")

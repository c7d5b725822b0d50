from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

PROGRAM = """
import builtins, sys

real = builtins.__import__

def interrupted(name, *args, **kwargs):
    if name == "typer":
        raise KeyboardInterrupt
    return real(name, *args, **kwargs)

builtins.__import__ = interrupted
from timonel.cli.entry import main
main()
"""


def test_ctrl_c_while_the_command_line_is_imported_is_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 130
    assert (done.stdout, done.stderr) == ("", "error: interrupted\n")


def test_the_module_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "timonel", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("timonel ")

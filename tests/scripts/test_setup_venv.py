"""The script that sets up environments, where Python cannot make any."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = f"python{sys.version_info.major}.{sys.version_info.minor}-venv"


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A folder of commands: a Python without ensurepip, an apt-get that only notes its words."""
    commands = {
        "python3": f'case "$*" in *ensurepip*) exit 1;; esac; exec {sys.executable} "$@"',
        "apt-get": f'echo "$*" >> {tmp_path}/apt-get.log',
        "id": "echo ${FAKE_UID}",
    }
    for name, text in commands.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    return tmp_path


def set_up(bare: Path, uid: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "scripts/setup-venv.sh", str(bare / "python3"), "/dev/null/venv", "none.txt"],
        cwd=ROOT,
        env={"PATH": f"{bare}:/usr/bin:/bin", "FAKE_UID": str(uid)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_user_is_told_the_command(bare: Path) -> None:
    done = set_up(bare, uid=1000)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert f"sudo apt-get install {PACKAGE}" in line
    assert not (bare / "apt-get.log").exists()


def test_root_installs_it_and_says_so(bare: Path) -> None:
    done = set_up(bare, uid=0)
    assert f"'apt-get install {PACKAGE}'" in done.stdout
    assert (bare / "apt-get.log").read_text().splitlines()[-1].endswith(PACKAGE)


def test_the_readme_names_what_a_bare_machine_lacks() -> None:
    for page in ("README.md", "docs/install.md"):
        text = (ROOT / page).read_text()
        assert "apt-get install python3-venv" in text
        assert "pip install timonel\n" not in text  # it is not on PyPI

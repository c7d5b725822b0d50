"""The scripts that find a Python and set up environments."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
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


def run(bare: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", *words],
        cwd=ROOT,
        env={"PATH": f"{bare}:/usr/bin:/bin", "HOME": str(bare), **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def set_up(bare: Path, uid: int) -> subprocess.CompletedProcess[str]:
    words = ("scripts/setup-venv.sh", "/dev/null/venv", "none.txt")
    return run(bare, *words, PYTHON=str(bare / "python3"), FAKE_UID=str(uid))


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


@pytest.fixture
def commands(tmp_path: Path) -> Callable[..., Path]:
    """A folder of commands for the Pythons that are installed, as (3, 12) or None: it does not run.

    Only what the script needs of the system is in it.
    """

    def make(**installed: tuple[int, int] | None) -> Path:
        for tool in ("sh", "head"):
            (tmp_path / tool).symlink_to(shutil.which(tool) or tool)
        for name in ("python3_13", "python3_12", "python3_11", "python3"):
            version = installed.get(name)
            body = "exit 127"
            if version is not None:
                fits = (3, 11) <= version <= (3, 13)
                body = f'case "$*" in *version_info*) echo {fits};; *) echo {name};; esac'
            path = tmp_path / name.replace("_", ".")
            path.write_text(f"#!/bin/sh\n{body}\n")
            path.chmod(0o755)
        return tmp_path

    return make


@pytest.mark.parametrize(
    ("installed", "found"),
    [
        ({"python3_13": (3, 13), "python3_11": (3, 11)}, "python3_13"),
        ({"python3_13": None, "python3_12": (3, 12), "python3": (3, 11)}, "python3_12"),
        ({"python3": (3, 12)}, "python3"),
        ({"python3": (3, 14)}, None),
        ({"python3": (3, 10)}, None),
        ({}, None),
    ],
)
def test_the_newest_supported_python_is_found(
    commands: Callable[..., Path], installed: dict[str, tuple[int, int] | None], found: str | None
) -> None:
    folder = commands(**installed)
    done = subprocess.run(
        [str(folder / "sh"), "scripts/find-python.sh"],
        cwd=ROOT,
        env={"PATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == (found or "")
    assert (done.returncode == 0) == (found is not None)
    if found is None:
        (line,) = done.stderr.splitlines()
        assert "apt-get install python3 python3-venv" in line
        assert "dnf install python3.13" in line
        assert "PYTHON=" in line


def test_a_misspelled_python_is_refused(bare: Path) -> None:
    done = run(bare, "scripts/find-python.sh", "no-such-python")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("PYTHON=no-such-python: ")
    assert line.endswith("got a program that does not run")


def test_an_unsupported_python_is_refused(bare: Path) -> None:
    (bare / "python3").write_text(
        '#!/bin/sh\ncase "$1" in --version) echo Python 3.10.2;; *) exit 1;; esac\n'
    )
    done = set_up(bare, uid=1000)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "expected Python 3.11, 3.12 or 3.13, got Python 3.10.2" in line


@pytest.mark.parametrize("version", ["Python 3.12.1", "Python 3.11.9"])
@pytest.mark.parametrize("is_whole", [True, False])
def test_an_interrupted_set_up_begins_anew(bare: Path, version: str, is_whole: bool) -> None:
    venv = bare / "venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").write_text(f"#!/bin/sh\n[ $1 = --version ] && echo {version}\n")
    (venv / "bin" / "python").chmod(0o755)
    (bare / "python3").write_text(
        f'#!/bin/sh\ncase "$*" in --version) echo Python 3.12.1;; *venv*) echo "$*" >> {bare}/log;;'
        " *version_info*) echo True;; esac\n"
    )
    (venv / ".made-by-make").touch()
    if is_whole:
        (venv / ".ready").touch()
    done = run(bare, "scripts/setup-venv.sh", str(venv), PYTHON=str(bare / "python3"))
    assert done.returncode != 0  # pip fails
    assert not (venv / ".ready").exists()
    keeps = is_whole and version == "Python 3.12.1"
    assert (bare / "log").exists() != keeps
    assert (venv / "bin").exists() == keeps
    assert (venv / ".made-by-make").exists()


def test_an_environment_of_the_user_is_left_alone(bare: Path) -> None:
    venv = bare / "venv"
    (venv / "lib").mkdir(parents=True)
    (bare / "python3").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    done = run(bare, "scripts/setup-venv.sh", str(venv), PYTHON=str(bare / "python3"))
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "was not made by make" in line
    assert "VENV=" in line
    assert [path.name for path in venv.iterdir()] == ["lib"]


def test_the_readme_names_what_a_bare_machine_lacks() -> None:
    for page in ("README.md", "docs/install.md"):
        text = (ROOT / page).read_text()
        assert "apt-get install python3-venv" in text
        assert "pip install timonel\n" not in text  # it is not on PyPI

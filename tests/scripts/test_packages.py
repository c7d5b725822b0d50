"""The sdist and the wheel, built as ``make wheel`` does, from nothing but what git knows."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(sys.executable).parent

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not (ROOT / ".git").exists(), reason="this is no checkout"),
]


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages of a clean copy of the checkout."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, source / name)
    # With the pinned setuptools of this environment: the tests reach no registry.
    argv = [str(SCRIPTS / "uv"), "build", "--quiet", "--offline", "--no-build-isolation"]
    argv += ["--python", sys.executable, "--out-dir", str(target), str(source)]
    subprocess.run(argv, check=True, capture_output=True, text=True)
    return target


def test_the_wheel_has_what_the_package_reads(dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    package = ROOT / "src" / "timonel"
    wanted = {
        f"timonel/{path.relative_to(package)}"
        for path in package.rglob("*")
        if path.is_file()
        and path.suffix in {".py", ".css", ".html", ".js", ".md", ".txt", ".typed"}
    }
    assert wanted - names == set()
    assert not [name for name in names if name.startswith("tests/") or name.endswith(".c")]


def test_the_sdist_has_sources_tests_and_docs(dist: Path) -> None:
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for name in (
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "Makefile",
        "scripts/setup-venv.sh",
        "requirements/bootstrap.txt",
        "src/timonel/serving/codec/_numbers.c",
        "tests/conftest.py",
        "docs/index.md",
    ):
        assert name in names


def test_an_installed_wheel_works_without_the_checkout(dist: Path, tmp_path: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    clean = tmp_path / "venv"
    venv.create(clean, symlinks=True)
    (packages,) = clean.glob("lib/python*/site-packages")
    zipfile.ZipFile(wheel).extractall(packages)
    # Dependencies are those of this environment; timonel is not: its editable install is a hook
    # of the site-packages' own .pth files, which a plain path does not run.
    dependencies = Path(pytest.__file__).parents[1]
    (packages / "dependencies.pth").write_text(f"{dependencies}\n")
    done = subprocess.run(
        [clean / "bin" / "python", "-c", "import timonel; print(timonel.__file__)"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(done.stdout.strip()).is_relative_to(clean)
    for words in (["--version"], ["init", "image", "project"], ["convert", "project/digits", "d"]):
        subprocess.run(
            [clean / "bin" / "python", "-m", "timonel", *words],
            cwd=tmp_path,
            check=True,
            capture_output=True,
        )
    assert (tmp_path / "d" / "manifest.json").is_file()

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import timonel
from timonel.errors import InputError
from timonel.storage.source_files import own_files, source_files


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / ".gitignore").write_text("secret.json\n")
    for name in ("secret.json", "train.py"):
        (tmp_path / name).write_text("1")
    (tmp_path / "part").mkdir()
    (tmp_path / "part/model.py").write_text("1")
    return tmp_path


def test_ignored_files_are_no_source(repository: Path) -> None:
    assert source_files(repository) == [".gitignore", "part/model.py", "train.py"]


@pytest.mark.parametrize("below", ["", "part"])
def test_a_repository_that_git_refuses_is_not_walked(
    repository: Path, below: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    # Without the user's list of folders that are safe.
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    with pytest.raises(InputError, match=r"dubious ownership.*a copy of the folder"):
        source_files(repository / below)


def test_a_repository_without_git_is_not_walked(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="git is not installed"):
        source_files(repository)


@pytest.mark.parametrize("path", [None, "/nowhere"])
def test_a_folder_outside_of_repositories_is_walked(
    tmp_path: Path, path: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".hidden").write_text("1")
    (tmp_path / "train.py").write_text("1")
    if path is not None:
        monkeypatch.setenv("PATH", path)
    assert source_files(tmp_path) == ["train.py"]


def test_own_files_are_those_that_are_imported() -> None:
    found = own_files()
    assert found["timonel/__init__.py"] == Path(timonel.__file__)
    assert {"timonel/py.typed", "timonel/storage/source_files.py"} <= found.keys()
    assert not [name for name in found if name.endswith(".pyc")]

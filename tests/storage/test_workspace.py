from __future__ import annotations

import stat
from pathlib import Path

import pytest

from timonel.errors import CorruptError, FormatError, InputError, NotFoundError, SpecError
from timonel.storage import Workspace, find_workspace, read_document, write_json
from timonel.storage.workspace import CLAIM_VARIABLE


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def test_a_new_workspace_is_made_here(tmp_path: Path) -> None:
    workspace = find_workspace()
    assert workspace.root == tmp_path / "here" / ".timonel"
    assert read_document(workspace.root / "FORMAT", "workspace")["format"] == 1
    for folder in ("jobs", "runs", "models", "datasets", "servers"):
        assert getattr(workspace, folder) == workspace.root / folder
        assert (workspace.root / folder).is_dir()
    assert (workspace.root / ".gitignore").read_text() == "*\n"
    assert find_workspace(create=False) == workspace


def test_the_nearest_one_upwards_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = find_workspace(tmp_path / ".timonel")
    deep = tmp_path / "here" / "a" / "b"
    deep.mkdir(parents=True)
    monkeypatch.chdir(deep)
    assert find_workspace() == workspace
    # A folder of that name without a format is no workspace.
    (deep / ".timonel").mkdir()
    assert find_workspace() == workspace


def test_the_argument_comes_before_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIMONEL_WORKSPACE", str(tmp_path / "named"))
    assert find_workspace().root == tmp_path / "named"
    assert find_workspace("other").root == tmp_path / "here" / "other"
    assert find_workspace().root == tmp_path / "named"


def test_none_is_said_so_where_none_may_be_made(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"no workspace at .*here or above"):
        find_workspace(create=False)
    with pytest.raises(NotFoundError, match=r"no workspace at .*named"):
        find_workspace(tmp_path / "named", create=False)
    assert list((tmp_path / "here").iterdir()) == []


def test_a_newer_or_broken_workspace_is_refused() -> None:
    root = find_workspace().root
    write_json(root / "FORMAT", {"kind": "workspace", "format": 99})
    with pytest.raises(FormatError, match="upgrade timonel"):
        find_workspace()
    (root / "FORMAT").write_text("?")
    with pytest.raises(CorruptError):
        find_workspace()


def test_a_place_that_cannot_be_written_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "x"):
        with pytest.raises(InputError, match="cannot write"):
            find_workspace(place)


def test_a_half_made_workspace_is_completed(tmp_path: Path) -> None:
    (tmp_path / "w" / "jobs").mkdir(parents=True)
    assert find_workspace(tmp_path / "w") == Workspace(tmp_path / "w")
    assert (tmp_path / "w" / "runs").is_dir()


def test_a_claim_without_a_name_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CLAIM_VARIABLE, f"{tmp_path}/team")
    with pytest.raises(SpecError, match="CLAIM must be NAME:/PATH"):
        find_workspace(tmp_path / "team/ws")


def test_a_new_workspace_on_a_claim_is_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv(CLAIM_VARIABLE, f"team:{tmp_path}/team")
    made = find_workspace(tmp_path / "team/ws")
    assert (made.uri, made.is_remote) == (f"shared://{tmp_path}/team/ws", True)
    assert stat.S_IMODE((tmp_path / "team/ws").stat().st_mode) == 0o700
    assert find_workspace(tmp_path / "other").uri == str(tmp_path / "other")
    # Machines without the setting use it in the same way.
    monkeypatch.delenv(CLAIM_VARIABLE)
    assert find_workspace(tmp_path / "team/ws") == made
    assert find_workspace(tmp_path / "team/ws", offline=True) == made

"""Whose files are trusted."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path

import pytest

from timonel.errors import InputError
from timonel.storage import find_workspace
from timonel.storage.ownership import check_own

ME, ROOT, OTHER = 1000, 0, 1001


@pytest.mark.parametrize(
    ("user", "sudo", "owner", "refused"),
    [
        (ME, "", ME, False),
        (ME, "", ROOT, False),
        (ME, "", OTHER, True),
        (ME, str(OTHER), OTHER, True),
        (ROOT, "", ROOT, False),
        (ROOT, "", ME, True),
        (ROOT, str(ME), ME, False),
        (ROOT, "no number", ME, True),
    ],
)
def test_whose_files_are_trusted(user, sudo, owner, refused, tmp_path, monkeypatch):
    found = os.stat_result((0o40755, 1, 1, 1, owner, 0, 0, 0, 0, 0))
    monkeypatch.setattr(Path, "stat", lambda self: found)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setenv("SUDO_UID", sudo)
    message = rf"belongs to another user \(ID {owner}\): do so"
    with pytest.raises(InputError, match=message) if refused else nullcontext():
        check_own(tmp_path, "do so")


def test_a_workspace_that_all_can_write_must_be_named(tmp_path, monkeypatch):
    find_workspace(tmp_path / ".timonel")
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    monkeypatch.delenv("TIMONEL_WORKSPACE", raising=False)
    assert find_workspace().root == tmp_path / ".timonel"
    (tmp_path / ".timonel").chmod(0o777)
    with pytest.raises(
        InputError, match=r"all users can write .*: if you trust it, name it: --wor"
    ):
        find_workspace()
    assert find_workspace(tmp_path / ".timonel").root == tmp_path / ".timonel"

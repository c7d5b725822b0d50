from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from timonel.tracking.environment import environment, git_state


def test_only_listed_variables_are_kept() -> None:
    found = environment({"TF_DETERMINISTIC_OPS": "1", "HOME": "/root", "TF_CONFIG": "{}"})
    assert found["variables"] == {"TF_DETERMINISTIC_OPS": "1"}
    assert {"python", "platform", "host", "cpus", "packages"} <= set(found)
    assert "tensorflow" in found["packages"]


def test_no_repository_is_no_state(tmp_path: Path) -> None:
    assert git_state(tmp_path) is None
    assert git_state(tmp_path / "missing") is None


def test_a_change_makes_the_repository_dirty(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        subprocess.run(["git", "-C", str(tmp_path), *arguments], check=True)

    git("init", "-q", "-b", "trunk")
    (tmp_path / "file").write_text("1")
    git("add", "file")
    git("-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "-qm", "one")
    clean = git_state(tmp_path)
    (tmp_path / "file").write_text("2")
    dirty = git_state(tmp_path)
    assert clean is not None
    assert dirty is not None
    assert (clean["dirty"], dirty["dirty"]) == (False, True)
    assert clean["branch"] == "trunk"
    assert clean["remote"] is None
    assert len(clean["commit"]) == 40


def test_git_that_is_absent_or_slow_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "bin"
    fake.mkdir()
    monkeypatch.setenv("PATH", str(fake))
    assert git_state(tmp_path) is None
    (fake / "git").write_text("#!/bin/sh\nexec /bin/sleep 5\n")
    (fake / "git").chmod(0o755)
    monkeypatch.setattr("timonel.tracking.environment._GIT_TIMEOUT_S", 0.05)
    assert git_state(tmp_path) is None

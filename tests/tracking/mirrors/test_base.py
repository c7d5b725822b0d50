from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator

import pytest

from timonel.errors import NotFoundError, TimonelError
from timonel.storage import Workspace
from timonel.tracking.mirrors import installed_mirrors, known_mirrors, mirror_class
from timonel.tracking.mirrors.mlflow import MlflowMirror


@pytest.fixture
def points(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two entry points: ours, and one whose import fails."""
    found = [
        importlib.metadata.EntryPoint(
            "mlflow", "timonel.tracking.mirrors.mlflow:MlflowMirror", "timonel.mirrors"
        ),
        importlib.metadata.EntryPoint("broken", "no_such_package:Mirror", "timonel.mirrors"),
    ]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: found)
    known_mirrors.cache_clear()
    yield
    known_mirrors.cache_clear()


def test_a_broken_mirror_is_remembered_and_raised_on_use(
    points: None, workspace: Workspace
) -> None:
    assert mirror_class("mlflow") is MlflowMirror
    assert [mirror.name for mirror in installed_mirrors(workspace)] == ["mlflow"]
    with pytest.raises(TimonelError, match="cannot import the mirror broken"):
        mirror_class("broken")
    with pytest.raises(NotFoundError, match="no mirror 'wandb': use one of mlflow, broken"):
        mirror_class("wandb")


def test_a_mirror_without_its_package_is_off(
    points: None, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MlflowMirror, "is_available", classmethod(lambda _: False))
    assert installed_mirrors(workspace) == []


@pytest.mark.parametrize(
    ("asked", "names"), [(None, ["mlflow"]), ("none", []), ("other, mlflow", ["mlflow"]), ("", [])]
)
def test_the_environment_narrows_mirrors_down(
    points: None,
    workspace: Workspace,
    monkeypatch: pytest.MonkeyPatch,
    asked: str | None,
    names: list[str],
) -> None:
    if asked is None:
        monkeypatch.delenv("TIMONEL_MIRRORS", raising=False)
    else:
        monkeypatch.setenv("TIMONEL_MIRRORS", asked)
    assert [mirror.name for mirror in installed_mirrors(workspace)] == names

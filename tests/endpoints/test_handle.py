"""Changes of an endpoint through its handle; nothing is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.endpoints.harness import write_version
from timonel.endpoints import Endpoint, deploy
from timonel.endpoints.checks import free_port
from timonel.endpoints.control.following import followed
from timonel.endpoints.folder import Revision
from timonel.errors import NotFoundError, SpecError
from timonel.models.repository import workspace_models
from timonel.storage import Workspace, find_workspace


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.setattr("timonel.endpoints.handle.run_control", lambda _workspace, _engine: None)
    made = find_workspace(tmp_path / ".timonel", create=True)
    for version in (1, 2):
        write_version(made, version)
    return made


def deployed(workspace: Workspace, version: int, **options: Any) -> Endpoint:
    return deploy(f"digits/{version}", workspace=workspace, wait=False, **options)


def opened(workspace: Workspace, folder: Path) -> Endpoint:
    """An endpoint that is open to the network and requires keys."""
    (folder / "keys").write_text("shop=0123456789abcdef\n")
    return deployed(workspace, 1, host="0.0.0.0", api_keys=folder / "keys")


def followed_revision(made: Endpoint) -> Revision:
    """The latest revision, after the control plane has looked at the alias."""
    moved = followed(made.spec, made.workspace)
    if moved is not None:
        made.folder.add(*moved, after=made.revision.number)
    return made.revision


def test_an_endpoint_follows_an_alias_until_its_traffic_is_changed(workspace: Workspace) -> None:
    models = workspace_models(workspace)
    models.alias("digits", "champion", 1)
    made = deploy("digits@champion", workspace=workspace, wait=False)
    first = followed_revision(made)
    assert (first.number, first.cause) == (1, "deploy digits@champion")
    assert dict(first.spec.traffic.percent) == {1: 100}
    write_version(workspace, 3)
    assert followed_revision(made) == first
    models.alias("digits", "champion", 2)
    second = followed_revision(made)
    assert dict(second.spec.traffic.percent) == {2: 100}
    assert second.cause.startswith("follow digits@champion to version 2: ")
    assert "@" in second.cause.rpartition(": ")[2]
    assert followed_revision(made) == second
    deploy("digits", workspace=workspace, wait=False, max_replicas=2)
    assert made.spec.follow == "champion"
    made.split(shadow={"version": 1, "percent": 10})
    assert made.spec.follow == "champion"
    made.split({1: 50, 2: 50})
    models.alias("digits", "champion", 3)
    assert dict(followed_revision(made).spec.traffic.percent) == {1: 50, 2: 50}


def test_a_rollback_and_a_rollout_end_following(workspace: Workspace) -> None:
    models = workspace_models(workspace)
    models.alias("digits", "champion", 1)
    made = deploy("digits@champion", workspace=workspace, wait=False)
    models.alias("digits", "champion", 2)
    followed_revision(made)
    rolled = made.rollback()
    assert (dict(rolled.spec.traffic.percent), rolled.spec.follow) == ({1: 100}, None)
    assert followed_revision(made) == rolled
    deploy("digits@champion", workspace=workspace, wait=False)
    with pytest.raises(SpecError, match="invalid steps"):
        made.rollout(1, steps=(7,))
    assert made.revision.spec.follow == "champion"
    made.rollout(1)
    assert (dict(made.spec.traffic.percent), made.spec.follow) == ({2: 100}, None)


def test_an_endpoint_follows_new_versions_only_if_told_to(workspace: Workspace) -> None:
    pinned = deploy("digits", workspace=workspace, wait=False, name="pinned")
    latest = deploy("digits@latest", workspace=workspace, wait=False, name="newest")
    write_version(workspace, 3)
    assert dict(followed_revision(pinned).spec.traffic.percent) == {2: 100}
    assert dict(followed_revision(latest).spec.traffic.percent) == {3: 100}
    deployed(workspace, 1, name="newest")
    assert latest.spec.follow is None


def test_a_removed_alias_keeps_the_version(workspace: Workspace) -> None:
    models = workspace_models(workspace)
    models.alias("digits", "champion", 1)
    made = deploy("digits@champion", workspace=workspace, wait=False)
    models.alias("digits", "champion", None)
    with pytest.raises(NotFoundError, match="digits has no champion version any more"):
        followed(made.spec, workspace)
    assert dict(made.spec.traffic.percent) == {1: 100}


@pytest.mark.parametrize("number", [None, 1])
def test_a_rollback_opens_no_endpoint_to_the_network(
    workspace: Workspace, tmp_path: Path, number: int | None
) -> None:
    made = opened(workspace, tmp_path)
    deployed(workspace, 2, host="127.0.0.1", no_api_keys=True)
    rolled = made.rollback(number).spec
    assert rolled.traffic.percent == {1: 100}
    assert (rolled.host, rolled.access.api_keys) == ("127.0.0.1", None)


def test_a_rollback_keeps_the_present_port(workspace: Workspace) -> None:
    made = deployed(workspace, 1)
    port = free_port("127.0.0.1", workspace)
    deployed(workspace, 2, port=port)
    assert made.rollback().spec.port == port


def test_revisions_that_differ_by_address_and_access_alone_are_skipped(
    workspace: Workspace, tmp_path: Path
) -> None:
    made = deployed(workspace, 1, min_replicas=1, max_replicas=2)
    made.scale(1, 3)
    opened(workspace, tmp_path)
    deployed(workspace, 1, host="127.0.0.1", no_api_keys=True)
    deployed(workspace, 1, port=free_port("127.0.0.1", workspace))
    rolled = made.rollback()
    assert (rolled.cause, rolled.spec.scaling.max_replicas) == ("rollback to 1", 2)


def test_bounds_that_contradict_each_other_are_refused_by_their_options(
    workspace: Workspace, tmp_path: Path
) -> None:
    with pytest.raises(SpecError, match=r"^--min 3 is above --max 2: raise --max$"):
        opened(workspace, tmp_path).scale(3, 2)


def test_an_endpoint_whose_address_alone_changed_cannot_be_rolled_back(
    workspace: Workspace, tmp_path: Path
) -> None:
    made = opened(workspace, tmp_path)
    deployed(workspace, 1, host="127.0.0.1", no_api_keys=True)
    with pytest.raises(SpecError, match="no earlier revision to return to"):
        made.rollback()
    assert made.rollback(1) == made.revision
    assert made.revision.number == 2

"""Changes of an endpoint through its handle; nothing is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.endpoints.harness import write_version
from timonel.endpoints import Endpoint, deploy
from timonel.endpoints.checks import free_port
from timonel.errors import SpecError
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


def test_an_endpoint_whose_address_alone_changed_cannot_be_rolled_back(
    workspace: Workspace, tmp_path: Path
) -> None:
    made = opened(workspace, tmp_path)
    deployed(workspace, 1, host="127.0.0.1", no_api_keys=True)
    with pytest.raises(SpecError, match="differs by more than address"):
        made.rollback()
    assert made.rollback(1) == made.revision
    assert made.revision.number == 2

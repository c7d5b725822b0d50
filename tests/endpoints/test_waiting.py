"""Waiting until an endpoint can answer."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.endpoints.harness import write_version
from timonel.endpoints import deploy
from timonel.endpoints.folder import EndpointFolder, EndpointStatus, ObservedVersion
from timonel.endpoints.waiting import wait_until_ready
from timonel.errors import ServingError
from timonel.storage import find_workspace
from timonel.storage.document_store import FolderDocuments


def test_an_endpoint_at_zero_can_answer_once_its_versions_have_started_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("handle", "waiting"):
        monkeypatch.setattr(f"timonel.endpoints.{module}.run_control", lambda *_: None)
    workspace = find_workspace(tmp_path / ".timonel", create=True)
    write_version(workspace, 1)
    endpoint = deploy("digits/1", workspace=workspace, wait=False, min_replicas=0)
    monkeypatch.setattr(type(endpoint), "is_listening", lambda _: True)
    documents = EndpointFolder(FolderDocuments(workspace.endpoints), "digits")
    status = EndpointStatus(routed=1, applied=1, versions={1: ObservedVersion()}, at=time.time())
    documents.write_status(status)
    with pytest.raises(ServingError, match="not ready after"):
        wait_until_ready(endpoint, 0.0, None)
    started = status.model_copy(update={"proved": {1: "digest"}})
    documents.write_status(started)
    wait_until_ready(endpoint, 0.0, None)
    for update in ({"applied": 0}, {"versions": {1: ObservedVersion(desired=1)}}):
        documents.write_status(started.model_copy(update=update))
        with pytest.raises(ServingError, match="not ready after"):
            wait_until_ready(endpoint, 0.0, None)

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.endpoints.harness import Endpoints, endpoints_in, write_version
from timonel.storage import find_workspace


@pytest.fixture(scope="module")
def endpoints(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, fake_runtime: None
) -> Iterator[Endpoints]:
    """Endpoints of the model ``digits``, whose versions are in the module's ``MODELS``."""
    workspace = find_workspace(tmp_path_factory.mktemp("endpoints") / ".timonel")
    for version, model in request.module.MODELS.items():
        write_version(workspace, version, json.dumps(model))
    with endpoints_in(workspace) as made:
        yield made

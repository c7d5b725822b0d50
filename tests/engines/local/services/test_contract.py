"""The contract suite of service engines, run against the local engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engines.local.services.harness import LocalHarness
from timonel.testing.services import ServiceEngineContract

pytestmark = pytest.mark.process


class TestLocal(ServiceEngineContract):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> LocalHarness:
        return LocalHarness(tmp_path / "services")

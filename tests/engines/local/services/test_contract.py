"""The contract suite of service engines, run against the local engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contracts.services import ServiceEngineContract
from tests.engines.local.services.harness import LocalHarness

pytestmark = pytest.mark.process


class TestLocal(ServiceEngineContract):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> LocalHarness:
        return LocalHarness(tmp_path / "services")

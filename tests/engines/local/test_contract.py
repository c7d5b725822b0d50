"""The contract of engines, kept by the local engine with and without zygotes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engines.local.harness import LocalHarness
from timonel.processes.zygote_client import LINGER
from timonel.testing.engines import EngineContract

pytestmark = pytest.mark.process


class TestPlain(EngineContract):
    @pytest.fixture
    def engine(self, tmp_path: Path) -> LocalHarness:
        return LocalHarness.at(tmp_path / "jobs", tmp_path)


class TestWarm(EngineContract):
    @pytest.fixture
    def engine(self, tmp_path: Path, zygote_runtime: Path) -> LocalHarness:
        jobs = tmp_path / "jobs"
        preload = ("colorsys", "timonel.testing")
        return LocalHarness.at(jobs, tmp_path, preload, {LINGER: "60"})

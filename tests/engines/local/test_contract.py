"""The contract of engines, kept by the local engine with and without zygotes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contracts.engines import EngineContract
from tests.engines.local.harness import LocalHarness
from timonel.processes.zygote_client import LINGER

pytestmark = pytest.mark.process


class TestPlain(EngineContract):
    @pytest.fixture
    def engine(self, tmp_path: Path) -> LocalHarness:
        return LocalHarness.at(tmp_path / "jobs", tmp_path)


class TestWarm(EngineContract):
    @pytest.fixture
    def engine(self, tmp_path: Path, zygote_runtime: Path) -> LocalHarness:
        jobs = tmp_path / "jobs"
        preload = ("colorsys", "tests.contracts")
        return LocalHarness.at(jobs, tmp_path, preload, {LINGER: "60"})

"""The contract of engines, kept by the local engine with and without zygotes."""

from __future__ import annotations

from pathlib import Path

import pytest

from timonel.engines.local import LocalEngine
from timonel.engines.local.zygote_client import LINGER
from timonel.testing.engines import EngineContract, EngineHarness


class TestPlain(EngineContract):
    @pytest.fixture
    def engine(self, tmp_path: Path) -> EngineHarness:
        return EngineHarness(LocalEngine(tmp_path / "jobs"), tmp_path / "jobs", tmp_path)


class TestWarm(EngineContract):
    @pytest.fixture
    def engine(self, tmp_path: Path, zygote_runtime: Path) -> EngineHarness:
        jobs = tmp_path / "jobs"
        preload = ("colorsys", "timonel.testing")
        return EngineHarness(LocalEngine(jobs), jobs, tmp_path, preload, {LINGER: "60"})

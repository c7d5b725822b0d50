"""The contract that every engine keeps, as a pytest class.

Subclass it and give it the fixture ``engine``:

    class TestMyEngine(EngineContract):
        @pytest.fixture
        def engine(self, tmp_path):
            return EngineHarness(MyEngine(tmp_path / "jobs"), tmp_path / "jobs", tmp_path)

Its tests are in modules by topic. Those of what not every engine can do are skipped by one
that cannot.
"""

from __future__ import annotations

from typing import Any

import pytest

from timonel.testing.engines.beside import CommandContract
from timonel.testing.engines.elastic import ElasticContract
from timonel.testing.engines.failing import FailingContract
from timonel.testing.engines.hanging import HangingContract
from timonel.testing.engines.harness import TASK_MODULE, EngineHarness, eventually, pid_of
from timonel.testing.engines.in_place import InPlaceContract
from timonel.testing.engines.logs import LogContract
from timonel.testing.engines.resuming import ResumingContract
from timonel.testing.engines.running import RunningContract
from timonel.testing.engines.stopping import StoppingContract

__all__ = ["TASK_MODULE", "EngineContract", "EngineHarness", "eventually", "pid_of"]


class EngineContract(
    RunningContract,
    StoppingContract,
    FailingContract,
    InPlaceContract,
    HangingContract,
    ElasticContract,
    ResumingContract,
    LogContract,
    CommandContract,
):
    """What every engine must do; see the module's description for its use."""

    @pytest.fixture(autouse=True)
    def _leave_nothing(self, engine: EngineHarness) -> Any:
        yield
        engine.close()

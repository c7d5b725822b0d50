"""Contract tests for engines, as a pytest class.

Subclass it and provide the fixture ``engine``:

    class TestMyEngine(EngineContract):
        @pytest.fixture
        def engine(self, tmp_path):
            return MyHarness(MyEngine(...), source=...)

The harness does what tests need beside the interface: it kills tasks, reads and writes files of
jobs, and tells what is left of them. No test assumes that it sees the tasks' processes or files.

The tests are split into modules by topic. Tests of optional abilities are skipped for engines
without them.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.contracts.engines.failing import FailingContract
from tests.contracts.engines.harness import TASK_MODULE, EngineHarness, eventually
from tests.contracts.engines.optional import OptionalContract
from tests.contracts.engines.running import RunningContract

__all__ = ["TASK_MODULE", "EngineContract", "EngineHarness", "eventually"]


class EngineContract(RunningContract, FailingContract, OptionalContract):
    """Contract tests for engines; see the module docstring for their use."""

    @pytest.fixture(autouse=True)
    def _leave_nothing(self, engine: EngineHarness) -> Any:
        yield
        engine.close()

from __future__ import annotations

import pytest

from tests.contracts.runners import RunnerContract
from timonel.data.runners import Runner, choose_runner
from timonel.data.runners.local import LocalRunner
from timonel.errors import SpecError


class TestLocalRunner(RunnerContract):
    @pytest.fixture
    def runner(self) -> Runner:
        return LocalRunner()


def test_runners_are_found_by_name() -> None:
    assert isinstance(choose_runner("local"), LocalRunner)
    with pytest.raises(SpecError, match=r"expected one of the runners .*local, got 'spark'"):
        choose_runner("spark")
    with pytest.raises(
        SpecError, match=r"the runner local has no options, got 'x=1': --beam needs --runner"
    ):
        choose_runner("local", "x=1")

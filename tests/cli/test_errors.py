from __future__ import annotations

import pytest

from tests.cli.conftest import Timonel
from timonel.cli import errors
from timonel.errors import Interrupted, JobError, SpecError

ERROR = SpecError("expected one thing, got another")


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found: list[float] = []
    monkeypatch.setattr(errors.time, "sleep", found.append)
    return found


def test_without_mpirun_nobody_waits(monkeypatch: pytest.MonkeyPatch, waited: list[float]) -> None:
    monkeypatch.delenv("PMIX_RANK", raising=False)
    assert not errors.first_rank_reports(ERROR)
    monkeypatch.setenv("PMIX_RANK", "0")
    assert not errors.first_rank_reports(ERROR)
    assert waited == []


def test_the_other_ranks_leave_it_to_the_first(
    monkeypatch: pytest.MonkeyPatch, waited: list[float]
) -> None:
    monkeypatch.setenv("PMIX_RANK", "1")
    assert not errors.first_rank_reports(ERROR)  # the first had nothing to say
    assert waited == [5.0]
    assert errors.first_rank_reports(Interrupted("interrupted"))
    assert not errors.first_rank_reports(JobError("worker-0 ended"))  # its own
    assert waited == [5.0]

    def ended(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(errors.time, "sleep", ended)
    assert errors.first_rank_reports(ERROR)


@pytest.mark.parametrize(("rank", "lines"), [("0", 1), ("1", 0)])
def test_bad_input_is_one_line_of_one_rank(
    rank: str, lines: int, monkeypatch: pytest.MonkeyPatch, timonel: Timonel
) -> None:
    def ended(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(errors.time, "sleep", ended)
    monkeypatch.setenv("PMIX_RANK", rank)
    for words in (("nowhere.py",), ("nowhere.py", "--nosuch")):
        done = timonel("train", *words)
        assert (done.exit_code, len(done.err.splitlines())) == (2, lines)

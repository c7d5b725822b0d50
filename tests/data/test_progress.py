from __future__ import annotations

from pathlib import Path

import pytest

from timonel.data.journal import Outcome
from timonel.data.manifest import Rejected
from timonel.data.progress import ShardProgress
from timonel.errors import DataError


class Reported(ShardProgress):
    fault = "records cannot be used"

    def write_rejected(self) -> Path:
        return Path("rejected.jsonl")

    def cure(self, first: Rejected) -> str:
        return f"correct {first.key}"


def outcome(records: int, *bad: str) -> Outcome:
    rejected = tuple(Rejected(key=key, reason="damaged") for key in bad)
    return Outcome(name="one", digest="", records=records, rejected=rejected)


def test_the_last_record_is_always_shown() -> None:
    seen: list[tuple[int, int]] = []
    report = Reported(200, 0.5, lambda *counts: seen.append(counts))
    for _ in range(201):  # one of them twice
        report.tick()
    assert seen[0] == (1, 200)
    assert seen[-1] == (200, 200)
    assert len(seen) < 50


def test_a_count_of_a_part_is_no_total() -> None:
    report = Reported(200, 0.01, None)
    report.finished(outcome(20, "a"))
    with pytest.raises(
        DataError,
        match=r"^at least 3 of 200 records cannot be used, above the limit of 1\.00%: a: damaged: "
        r"see rejected\.jsonl; correct a$",
    ):
        report.finished(outcome(20, "b", "c"))


def test_a_count_of_all_is_exact() -> None:
    report = Reported(3, 0.4, None, [Rejected(key="a", reason="empty")])
    report.finished(outcome(2))
    with pytest.raises(DataError, match=r"^2 of 4 records cannot be used"):
        report.finished(outcome(0, "b"))

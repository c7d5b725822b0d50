from __future__ import annotations

from pathlib import Path

import pytest

from timonel.data.journal import Outcome
from timonel.data.manifest import Rejected
from timonel.data.progress import ShardProgress, reported
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


def test_items_are_reported_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(number / 16 for number in range(100))
    monkeypatch.setattr("time.monotonic", lambda: next(now))
    shown: list[tuple[int, int]] = []
    items = range(10)
    assert list(reported(items, lambda done, total: shown.append((done, total)), 10)) == [*items]
    assert shown == [(2, 10), (4, 10), (6, 10), (8, 10), (10, 10)]
    assert list(reported(items, None)) == [*items]

"""Contract tests for runners of conversions.

Subclass `RunnerContract` in a test module and provide a fixture named ``runner``. pytest then runs
the contract against it:

    class TestMyRunner(RunnerContract):
        @pytest.fixture
        def runner(self):
            return MyRunner()
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from PIL import Image

from timonel.data.runners import Report, Runner
from timonel.data.shards import ConversionJob, ConversionJournal, ShardOutcome, ShardPlan, write_one
from timonel.data.sources import Source, SourceOptions
from timonel.data.sources.images import ImageFolderSource
from timonel.data.sources.table import TableSource
from timonel.errors import TimonelError
from timonel.storage import digest_tree
from timonel.storage.location import Location

_LABELS = {"black": 0, "white": 1}
_IMAGES = 12
_DAMAGED = "white/003.png"


class _Counts(Report):
    def __init__(self) -> None:
        self.records = 0
        self.outcomes: list[ShardOutcome] = []
        self._lock = threading.Lock()

    def tick(self, records: int = 1) -> None:
        with self._lock:
            self.records += records

    def finished(self, outcome: ShardOutcome) -> None:
        with self._lock:
            self.outcomes.append(outcome)


class RunnerContract:
    """Contract tests for properties that conversions rely on."""

    @pytest.fixture
    def runner(self) -> Runner:
        raise NotImplementedError("give a fixture named 'runner'")

    def test_all_shards_are_written_as_one_by_one(self, runner: Runner, tmp_path: Path) -> None:
        source = images(tmp_path)
        expected, plans = planned(source, tmp_path / "expected")
        for plan in plans:
            write_one(plan, expected)
        job, _ = planned(source, tmp_path / "job")
        report = _Counts()
        runner.run(job, plans, report)
        assert digest_tree(job.journal.content) == digest_tree(expected.journal.content)
        for plan in plans:
            assert job.journal.outcome(plan.name) == expected.journal.outcome(plan.name)
        assert report.records == 2 * _IMAGES
        names = [outcome.name for outcome in report.outcomes]
        assert sorted(names) == sorted(plan.name for plan in plans)

    def test_rejected_records_are_in_the_outcomes(self, runner: Runner, tmp_path: Path) -> None:
        job, plans = planned(images(tmp_path), tmp_path / "job")
        report = _Counts()
        runner.run(job, plans, report)
        rejected = [each for outcome in report.outcomes for each in outcome.rejected]
        assert [each.key for each in rejected] == [_DAMAGED]

    def test_records_have_several_labels(self, runner: Runner, tmp_path: Path) -> None:
        table = tmp_path / "rows.csv"
        table.write_text("size,tags\n" + "".join(f"{n},a|b\n{n}.5,b\n" for n in range(_IMAGES)))
        options = SourceOptions(label="tags", task="multilabel")
        source = TableSource(Location(table), options)
        expected, plans = planned(source, tmp_path / "expected", several=("a", "b"))
        for plan in plans:
            write_one(plan, expected)
        job, _ = planned(source, tmp_path / "job", several=("a", "b"))
        runner.run(job, plans, _Counts())
        assert digest_tree(job.journal.content) == digest_tree(expected.journal.content)

    def test_no_shards_are_no_work(self, runner: Runner, tmp_path: Path) -> None:
        job, _ = planned(images(tmp_path), tmp_path / "job")
        report = _Counts()
        runner.run(job, [], report)
        assert report.records == 0

    def test_a_report_can_stop_the_runner(self, runner: Runner, tmp_path: Path) -> None:
        job, plans = planned(images(tmp_path), tmp_path / "job")

        class Stopping(_Counts):
            def finished(self, outcome: ShardOutcome) -> None:
                raise TimonelError(f"enough after {outcome.name}")

        with pytest.raises(TimonelError, match="enough after"):
            runner.run(job, plans, Stopping())
        assert job.journal.has_finished()

    def test_a_folder_that_cannot_be_written_is_one_error(
        self, runner: Runner, tmp_path: Path
    ) -> None:
        job, plans = planned(images(tmp_path), tmp_path / "job")
        job.journal.content.rmdir()
        with pytest.raises(TimonelError, match="cannot write"):
            runner.run(job, plans, _Counts())


def images(folder: Path) -> ImageFolderSource:
    """Return a source of small images, one of them damaged."""
    for label, shade in (("black", 0), ("white", 255)):
        (folder / "images" / label).mkdir(parents=True)
        for index in range(_IMAGES):
            path = folder / "images" / label / f"{index:03d}.png"
            Image.new("L", (4 + index, 5), shade).save(path)
    damaged = folder / "images" / _DAMAGED
    damaged.write_bytes(damaged.read_bytes()[:-20])
    return ImageFolderSource(Location(folder / "images"))


def planned(
    source: Source, folder: Path, several: Sequence[str] = ()
) -> tuple[ConversionJob, list[ShardPlan]]:
    """Return a conversion with its plan in a journal; ``several`` are labels of one record."""
    folder.mkdir()
    journal = ConversionJournal(folder)
    entries = list(source.scan().entries)
    plans = [
        ShardPlan("train-00000-of-00002.tfrecord", "train", 10),
        ShardPlan("train-00001-of-00002.tfrecord", "train", 9),
        ShardPlan("test-00000-of-00001.tfrecord", "test", len(entries) - 19),
    ]
    journal.begin(journal.write_plan(plans, iter(entries)))
    labels = {label: number for number, label in enumerate(several)} or _LABELS
    return ConversionJob(source, journal, labels, is_multilabel=bool(several)), plans

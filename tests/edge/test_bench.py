"""Formats of a version compared."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from timonel.cli.render.conversion import bench_table
from timonel.edge.bench import compare_formats, draw_formats
from timonel.edge.report import ConversionReport
from timonel.errors import SpecError
from timonel.models import ModelVersion

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]


def test_formats_are_compared_and_drawn(row_version: ModelVersion, tmp_path: Path) -> None:
    found = dict(compare_formats(row_version, ["litert-int8", "tfjs"]))
    assert list(found) == ["litert-int8", "tfjs"]
    reports = [each for each in found.values() if isinstance(each, ConversionReport)]
    assert len(reports) == 2
    assert [bool(report.timings) for report in reports] == [True, False]
    for report in reports:
        assert (report.comparison.original_accuracy or 0) > 0.8
        assert len({row.original for row in report.worst}) > 1
    console = Console(file=io.StringIO(), width=100)
    with console.capture() as shown:
        console.print(bench_table(found))
    assert [line.split()[0] for line in shown.get().splitlines()[1:3]] == [
        "original",
        "litert-int8",
    ]
    draw_formats(tmp_path / "formats.png", reports)
    assert (tmp_path / "formats.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(SpecError, match="the plot is a PNG file"):
        draw_formats(tmp_path / "formats.gif", reports)


def test_formats_that_cannot_be_made_say_why(row_version: ModelVersion, tmp_path: Path) -> None:
    unknown = row_version.model_copy(update={"document": None})
    ((name, reason),) = compare_formats(unknown, ["litert-int8"])
    assert name == "litert-int8"
    assert "needs examples" in str(reason)
    with pytest.raises(SpecError, match="unknown format 'litert8'"):
        next(iter(compare_formats(row_version, ["litert8"])))

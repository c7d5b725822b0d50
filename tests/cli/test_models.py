"""Models on the command line, up to the work of other processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Timonel


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("convert", "model", "--to", "tfjs", "--c-header"), "--c-header is for LiteRT"),
        (("convert", "other"), "no workspace"),
        (("bench", "model", "--formats", "litert8", "--data", "d"), "unknown format 'litert8'"),
        (("convert", "model", "--page"), "--page needs a model of images"),
        (("bench", "model", "--plot", "formats.gif"), "the plot is a PNG file"),
        (("optimize", "model", "--samples", "none"), "cannot read"),
    ],
)
def test_folders_need_no_workspace(
    arguments: tuple[str, ...], problem: str, here: Path, timonel: Timonel
) -> None:
    (here / "model").mkdir()
    (here / "model" / "saved_model.pb").write_bytes(b"")
    done = timonel("models", *arguments)
    assert done.exit_code == 2
    assert problem in done.error_line

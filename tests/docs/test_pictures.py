"""Pictures read on light and on dark pages, and say what they leave out."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
SIDES = {
    "timonel serve": ("timonel", 100.0),
    "peer": ("peer", 50.0),
    "echo": ("bound", 5000.0),
    "in-process": ("bound", 90.0),
}


@pytest.mark.parametrize("picture", sorted(PICTURES.glob("*.svg")), ids=lambda path: path.stem)
def test_a_picture_has_no_background_and_no_black(picture: Path) -> None:
    text = picture.read_text()
    assert not re.search(r'<g id="patch_\d+">\s*<path d="[^"]*"\s+style="fill: #ffffff"', text)
    assert "#000000" not in text


@pytest.mark.process
def test_bars_that_are_cut_are_marked(tmp_path: Path) -> None:
    # In a process of its own: it sets matplotlib's backend and style for good.
    tables = {
        "S": {
            name: {"kind": kind, "failed": 0, "samples": [{"rate": rate}]}
            for name, (kind, rate) in SIDES.items()
        }
    }
    code = (
        "import sys, pathlib, make_serving as m; m.mpl.rcParams.update(m.STYLE);"
        f"m.draw({tables!r}, pathlib.Path(sys.argv[1]))"
    )
    target = tmp_path / "serving.svg"
    subprocess.run([sys.executable, "-c", code, str(target)], cwd=PICTURES, check=True)
    text = target.read_text()
    assert text.count('id="cut"') == 2  # the two strokes of one bar
    assert "none can pass" not in text
    assert "cut short" in text

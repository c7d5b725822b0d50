"""Reports of datasets in a real browser: `make test-browser`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.data.conftest import MakeCsv
from tests.data.inspection.test_near_duplicates import encoded, photograph
from timonel.data import convert, report
from timonel.storage import Workspace

pytestmark = pytest.mark.browser
pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed; see make test-browser"
)


@pytest.fixture(params=["images", "table"])
def page(request, make_csv: MakeCsv, tmp_path: Path, workspace: Workspace) -> Path:
    """The report of a dataset with long names."""
    if request.param == "table":
        name = "a_column_with_a_long_name" * 3
        rows = [f"{i * 7 % 101}.5,{'word ' * 12}{i % 20},{i % 2}" for i in range(200)]
        source = make_csv(f"{name},words,y", *rows)
        convert(source, tmp_path / "data", label="y", workspace=workspace)
    else:
        for number in range(40):
            folder = tmp_path / "raw" / f"label-{'x' * 80}-{number % 2}"
            folder.mkdir(parents=True, exist_ok=True)
            content = encoded(photograph(number % 36), quality=90 - number)
            (folder / f"{'name' * 20}{number}.jpg").write_bytes(content)
        convert(tmp_path / "raw", tmp_path / "data", workspace=workspace)
    report(tmp_path / "data", tmp_path / "page.html")
    return tmp_path / "page.html"


@pytest.mark.parametrize("width", [390, 1280])
def test_a_report_fits_the_screen_and_loads_nothing(page: Path, browser, width: int) -> None:
    complaints: list[str] = []
    tab = browser.new_page(viewport={"width": width, "height": 800})
    tab.on("console", lambda message: complaints.append(message.text))
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.on("request", lambda request: complaints.append(request.url[:60]))
    tab.goto(page.as_uri())
    loaded = [line for line in complaints if not line.startswith(("data:", page.as_uri()[:60]))]
    assert loaded == []
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    broken = "[...document.images].filter(image => !image.complete || !image.naturalWidth).length"
    assert tab.evaluate(broken) == 0
    assert tab.locator("h2", has_text="Samples").is_visible()
    tab.close()

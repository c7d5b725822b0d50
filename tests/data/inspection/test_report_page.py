"""The report: that it is whole, harmless, and says what was planted."""

from __future__ import annotations

import base64
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.buckets import open_bucket
from tests.data.conftest import MakeCsv, MakeImages
from tests.data.inspection.test_near_duplicates import encoded, photograph
from timonel.data import convert, inspect, report
from timonel.errors import InputError, SpecError
from timonel.storage import Workspace
from timonel.storage.object_store import ObjectStore


class Tags(HTMLParser):
    """Tags of a page; all that need an end have one."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.open: list[str] = []
        self.images: list[dict[str, str]] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs) -> None:
        self.names.append(tag)
        loaded = [value or "" for name, value in attrs if name in {"src", "href", "data"}]
        assert all(value.startswith("data:image/") for value in loaded)
        if tag == "img":
            self.images.append({name: value or "" for name, value in attrs})
        if tag not in {"img", "meta", "path", "br"}:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs) -> None:
        self.names.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def page_of(path: Path) -> Tags:
    tags = Tags(path.read_text())
    assert not {"script", "link", "iframe"} & set(tags.names)
    return tags


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """Two labels with evil names; two near-duplicates across splits, a wrong label, a damage."""
    root = tmp_path / "raw"
    for number in range(60):
        split = "train" if number < 50 else "test"
        folder = root / split / ("<script>" if number % 2 else "b&b")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"<img src=x>{number}.jpg").write_bytes(encoded(photograph(number)))
    for number in (1, 2):
        folder = root / "test" / ("<script>" if number % 2 else "b&b")
        (folder / f"copy{number}.jpg").write_bytes(encoded(photograph(number), quality=50))
    (root / "train" / "<script>" / "wrong.jpg").write_bytes(encoded(photograph(4)))
    (root / "train" / "b&b" / "damaged.jpg").write_bytes(encoded(photograph(5))[:900])
    return root


def test_what_is_wrong_with_images_is_shown(
    planted: Path, tmp_path: Path, workspace: Workspace
) -> None:
    convert(planted, tmp_path / "data", max_rejected=0.1, workspace=workspace)
    found = report(tmp_path / "data", tmp_path / "page.html")
    assert (found.records, found.identical, found.near_duplicates) == (63, 1, 2)
    warnings = "\n".join(found.warnings)
    assert "2 near-duplicate images across splits" in warnings
    assert "1 image with contradictory labels" in warnings
    tags = page_of(tmp_path / "page.html")
    assert all(line in tags.text for line in found.warnings)
    assert "damaged JPEG image" in tags.text
    assert "train, label <script>train/<script>/<img src=x>1.jpg" in tags.text
    assert "test, label <script>test/<script>/copy1.jpg" in tags.text
    # A pair each, the identical ones, and eight samples of two labels.
    assert len(tags.images) == 2 * 2 + 2 + 2 * 8
    assert all(image["alt"] for image in tags.images)
    for image in tags.images:
        content = base64.b64decode(image["src"].partition(",")[2])
        assert max(Image.open(io.BytesIO(content)).size) <= 160


def test_a_table_has_charts_missing_values_and_rows(
    make_csv: MakeCsv, tmp_path: Path, workspace: Workspace
) -> None:
    random = np.random.default_rng(0)
    rows = [
        f"{'' if i % 5 == 0 else random.normal()},{'<b>' if i % 3 else 'x'},{i % 2}"
        for i in range(300)
    ]
    source = make_csv("size,<i>colour</i>,good", *rows, "1,x,0", "1,x,1")
    convert(source, tmp_path / "data", label="good", workspace=workspace)
    found = report(tmp_path / "data", tmp_path / "page.html")
    assert found.near_duplicates == 0
    tags = page_of(tmp_path / "page.html")
    assert tags.names.count("svg") == 1
    assert "<i>colour</i>" in tags.text
    assert "Near-duplicate images" not in tags.text
    for heading in ("Missing values", "Distributions by split", "Identical records", "Samples"):
        assert heading in tags.text
    assert re.search(r"size\d+ \(\d\d\.\d%\)", tags.text)


def test_samples_are_what_a_person_reads(
    make_csv: MakeCsv, tmp_path: Path, workspace: Workspace
) -> None:
    lines = [
        f"{i + 0.5},2024-03-{i % 28 + 1:02d},same,{'a|b' if i % 2 else 'b'}" for i in range(90)
    ]
    lines += [f",,same,{'x' * 300}"] * 4
    source = make_csv("size,day,one,tags", *lines)
    options = {"label": "tags", "task": "multilabel", "columns": {"day": "date", "one": "text"}}
    convert(source, tmp_path / "data", workspace=workspace, **options)
    report(tmp_path / "data", tmp_path / "page.html")
    text = page_of(tmp_path / "page.html").text
    assert "Only one value: one bytes (4)." in text
    assert "2024-03-" in text.partition("Samples")[2]
    assert "nan" not in text
    assert "x" * 80 not in text.partition("Samples")[2]
    keys = re.findall(r"rows\.csv#\d+", text.partition("Samples")[2])
    assert len(keys) == len(set(keys)) > 10


def test_boxes_are_drawn(tmp_path: Path, workspace: Workspace) -> None:
    for number in range(30):
        Image.new("RGB", (90, 60), (number, 0, 0)).save(tmp_path / f"{number}.png")
    rows = [
        {"img": f"{n}.png", "box": [[0.5, 0.25, 1, 0.75, n % 2]], "y": n % 3} for n in range(30)
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    columns = {"img": "image", "box": "boxes"}
    source = tmp_path / "rows.jsonl"
    convert(
        source, tmp_path / "data", kind="table", label="y", columns=columns, workspace=workspace
    )
    report(tmp_path / "data", tmp_path / "page.html")
    image = page_of(tmp_path / "page.html").images[0]
    content = base64.b64decode(image["src"].partition(",")[2])
    pixels = np.asarray(Image.open(io.BytesIO(content)).convert("L"), int)
    rows_, columns_ = np.nonzero(pixels > 100)
    assert (rows_.min(), rows_.max(), columns_.min(), columns_.max()) == pytest.approx(
        (30, 59, 22, 68), abs=2
    )


def test_a_regression_with_few_rows(
    make_csv: MakeCsv, tmp_path: Path, workspace: Workspace
) -> None:
    source = make_csv("a,y", *[f"{i * 7 % 13},{i}.5" for i in range(40)])
    convert(source, tmp_path / "data", label="y", workspace=workspace)
    report(tmp_path / "data", tmp_path / "page.html")
    assert page_of(tmp_path / "page.html").names.count("svg") == 2


@pytest.mark.slow
def test_many_labels_and_an_empty_split(
    make_images: MakeImages, tmp_path: Path, workspace: Workspace
) -> None:
    source = make_images([f"label {number:03d}" for number in range(160)], 3, size=(3, 3))
    convert(source, tmp_path / "data", splits=(1, 0, 0), workspace=workspace)
    found = report(tmp_path / "data", tmp_path / "page.html")
    assert "no records in validation and test" in found.warnings
    tags = page_of(tmp_path / "page.html")
    assert 150 <= len(tags.images) <= 300
    assert "label 159" in tags.text


@pytest.mark.parametrize("kind", ["memory", "s3"])
def test_a_report_and_images_in_a_bucket(
    kind: str,
    make_images: MakeImages,
    tmp_path: Path,
    workspace: Workspace,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    convert(make_images(), tmp_path / "data", workspace=workspace)
    monkeypatch.chdir(tmp_path)
    before = set(tmp_path.rglob("*"))
    for place in open_bucket(kind, request, monkeypatch):
        found = report(tmp_path / "data", f"{place}/page.html")
        assert found.uri == f"{place}/page.html"
        assert b"<h2>Samples</h2>" in ObjectStore(place).read("page.html")
        images = inspect(tmp_path / "data", number=2, out=f"{place}/images").images
        assert sorted(ObjectStore(f"{place}/images").find()) == [
            each.rpartition("/")[2] for each in images
        ]
        assert len(images) == 2
    assert set(tmp_path.rglob("*")) == before


def test_wrong_requests(make_images: MakeImages, tmp_path: Path, workspace: Workspace) -> None:
    convert(make_images(), tmp_path / "data", workspace=workspace)
    with pytest.raises(SpecError, match="a report is an HTML page"):
        report(tmp_path / "data", tmp_path / "page.pdf")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write"):
        report(tmp_path / "data", tmp_path / "file" / "page.html")


def test_rejected_rows_are_counted_by_reason_and_ignored_ones_are_listed(
    make_csv: MakeCsv, tmp_path: Path, workspace: Workspace
) -> None:
    bad = {n: ["old", "1e99", "new"][n % 3] for n in range(0, 1200, 100)}
    lines = [f"{bad.get(n, n)},{'DISCARD' if n % 400 == 7 else ''},{n % 2}" for n in range(1200)]
    path = make_csv("price,split,y", *lines)
    options = {"label": "y", "max_rejected": 0.1, "columns": {"price": "number"}}
    convert(path, tmp_path / "data", workspace=workspace, **options)
    report(tmp_path / "data", tmp_path / "page.html")
    text = page_of(tmp_path / "page.html").text
    assert "... is not a finite number in column 'price' in line ...8" in text
    assert "... is too large for a 32-bit float in column 'price' in line ...4" in text
    assert "3 items of the source:rows.csv#8 (split DISCARD)rows.csv#408" in text

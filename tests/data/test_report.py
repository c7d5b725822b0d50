from __future__ import annotations

from pathlib import Path

from tests.data.conftest import MakeCsv, MakeImages
from timonel.data.conversion import convert
from timonel.data.report import summarise
from timonel.storage import Workspace


def test_images(make_images: MakeImages, tmp_path: Path, workspace: Workspace) -> None:
    root = make_images()
    (root / "notes.txt").touch()
    bad = root / "dog" / "004.png"
    bad.write_bytes(bad.read_bytes()[:-30])
    report = summarise(convert(root, tmp_path / "set", skip_bad=True, workspace=workspace))
    assert report.title.startswith("19 images, ")
    assert report.title.endswith(" in 3 shards")
    assert report.header == ("label", "train", "validation", "test", "all")
    assert report.rows == (
        ("cat", "8", "1", "1", "10"),
        ("dog", "7", "1", "1", "9"),
        ("all", "15", "2", "2", "19"),
    )
    facts = dict(report.facts)
    assert (facts["task"], facts["size"]) == ("classification", "6x5")
    assert (facts["formats"], facts["colour"]) == ("19 png", "colour")
    assert report.warnings[0].startswith("1 skipped, the first: dog/004.png: expected a whole PNG")
    assert report.warnings[1] == "1 ignored, the first: notes.txt"


def test_images_of_several_sizes(
    make_images: MakeImages, tmp_path: Path, workspace: Workspace
) -> None:
    make_images(["cat"], size=(10, 20))
    report = summarise(
        convert(make_images(["dog"], size=(6, 5)), tmp_path / "set", workspace=workspace)
    )
    assert dict(report.facts)["size"] == "6x5 to 10x20, half below 6x5"


def test_a_table_to_predict_numbers(
    make_csv: MakeCsv, tmp_path: Path, workspace: Workspace
) -> None:
    path = make_csv("a,b,y", *(f"{i * 2},w{i % 2},{i}.5" for i in range(50)))
    report = summarise(convert(path, tmp_path / "set", label="y", workspace=workspace))
    assert report.rows == (("all", "40", "5", "5", "50"),)
    facts = dict(report.facts)
    assert facts["columns"] == "1 numeric, 1 categorical"
    assert (facts["task"], facts["label"]) == ("regression", "y")
    assert facts["target"] == "1.5 to 49.5, mean 24.025"
    assert report.warnings == ()

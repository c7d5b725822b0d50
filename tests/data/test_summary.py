from __future__ import annotations

from pathlib import Path

from tests.data.conftest import MakeCsv, MakeImages
from timonel.data.conversion import convert
from timonel.data.summary import summarise
from timonel.storage import Workspace


def test_images(make_images: MakeImages, tmp_path: Path, workspace: Workspace) -> None:
    root = make_images()
    (root / "notes.txt").touch()
    bad = root / "dog" / "004.png"
    bad.write_bytes(bad.read_bytes()[:-30])
    report = summarise(convert(root, tmp_path / "set", max_rejected=0.1, workspace=workspace))
    assert report.title.startswith("19 images, ")
    assert report.title.endswith(" in 3 shards")
    assert report.header == ("label", "train", "validation", "test", "all")
    assert report.rows == (
        ("cat", "7", "2", "1", "10"),
        ("dog", "8", "1", "0", "9"),
        ("all", "15", "3", "1", "19"),
    )
    facts = dict(report.facts)
    assert (facts["height"], facts["width"]) == ("6 pixels", "5 pixels")
    assert (facts["formats"], facts["channels"]) == ("19 png", "3 (colour)")
    assert report.warnings[0] == "the test split would be empty: records were moved to it"
    assert report.warnings[1].startswith("1 image rejected, the first: dog/004.png: damaged PNG")
    assert report.warnings[2] == "1 item ignored: notes.txt"


def test_ignored_files_are_named(
    make_images: MakeImages, tmp_path: Path, workspace: Workspace
) -> None:
    root = make_images(count=20)
    for number in range(7):
        (root / f"{number}.txt").touch()
    report = summarise(convert(root, tmp_path / "set", workspace=workspace))
    assert report.warnings[-1] == (
        "7 items ignored: 0.txt, 1.txt, 2.txt, 3.txt, 4.txt and 2 more: "
        "'timonel data report' lists them"
    )


def test_images_of_several_sizes(
    make_images: MakeImages, tmp_path: Path, workspace: Workspace
) -> None:
    make_images(["cat"], size=(10, 20))
    report = summarise(
        convert(make_images(["dog"], size=(6, 5)), tmp_path / "set", workspace=workspace)
    )
    assert dict(report.facts)["width"] == "5 to 20, median 5 pixels"


def test_numbers_in_another_form_are_to_be_written_anew(
    make_csv: MakeCsv, tmp_path: Path, workspace: Workspace
) -> None:
    path = make_csv("a;b;y", *(f"{i},5;{i};{i % 2}" for i in range(30)))
    (warning,) = summarise(
        convert(path, tmp_path / "one", label="y", columns={"b": "int"}, workspace=workspace)
    ).warnings
    assert warning.startswith("column a dropped: 30 of 30 values are not numbers")
    assert "write plain numbers" in warning
    assert "--columns" not in warning
    path = make_csv("a;c;b;y", *(f"{i},5;word{i};{i}.5;{i % 2}" for i in range(30)))
    report = summarise(convert(path, tmp_path / "two", label="y", workspace=workspace))
    assert report.warnings[1].endswith("keep it with --columns c=text, or =category")


def test_many_columns_to_check_are_counted(
    make_csv: MakeCsv, tmp_path: Path, workspace: Workspace
) -> None:
    names = [f"c{number}" for number in range(7)]
    rows = (f"{f'id{i},' * 7}{i},{i % 2}" for i in range(30))
    path = make_csv(",".join([*names, "b", "y"]), *rows)
    dataset = convert(path, tmp_path / "set", label="y", columns={"b": "int"}, workspace=workspace)
    warnings = summarise(dataset).warnings
    assert [line.split()[1] for line in warnings[:5]] == names[:5]
    assert warnings[5] == f"2 more columns to check: 'timonel data schema {dataset.uri}'"


def test_rows_inside_of_a_quoted_value(
    make_csv: MakeCsv, tmp_path: Path, workspace: Workspace
) -> None:
    path = make_csv("a,y", *(f"{i % 9},{i % 2}" for i in range(30)), '1,"0', '2,0"')
    report = summarise(
        convert(path, tmp_path / "set", label="y", task="classification", workspace=workspace)
    )
    assert report.warnings[0].startswith("a quoted value in the row from line 32 of rows.csv")


def test_a_table_to_predict_numbers(
    make_csv: MakeCsv, tmp_path: Path, workspace: Workspace
) -> None:
    path = make_csv("a,b,y", *(f"{i * 2},w{i % 2},{i}.5" for i in range(50)))
    report = summarise(convert(path, tmp_path / "set", label="y", workspace=workspace))
    assert report.rows == (("all", "44", "4", "2", "50"),)
    facts = dict(report.facts)
    assert facts["columns"] == "1 number, 1 category"
    assert (facts["task"], facts["label"]) == ("regression", "y")
    assert facts["target"] == "0.5 to 49.5, mean 25.1591"
    assert report.warnings == ()


def test_a_cut_vocabulary_is_announced(
    make_csv: MakeCsv, tmp_path: Path, workspace: Workspace
) -> None:
    path = make_csv("w,x,y", *(f"w{i % 9},{i},{i % 2}" for i in range(90)))
    full = summarise(convert(path, tmp_path / "full", label="y", workspace=workspace))
    assert not [line for line in full.warnings if "vocabulary" in line]
    cut = convert(path, tmp_path / "cut", label="y", max_vocabulary=4, workspace=workspace)
    (line,) = [line for line in summarise(cut).warnings if "vocabulary" in line]
    assert line.startswith(
        "column w: the rarest 5 of 9 words are not in the vocabulary, and count as"
    )
    assert line.endswith("raise it with --max-vocabulary, or use --columns w=text")
    text = {"w": "text"}
    cut = convert(
        *(path, tmp_path / "text"), label="y", max_vocabulary=4, columns=text, workspace=workspace
    )
    (line,) = [line for line in summarise(cut).warnings if "vocabulary" in line]
    assert line.endswith("and are ignored: raise it with --max-vocabulary")

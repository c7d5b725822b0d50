"""Projects: all or nothing, nothing overwritten, and what they are made of."""

from __future__ import annotations

import ast
import csv
import re
from pathlib import Path

import pytest

from tests.cli.conftest import Timonel
from timonel.cli import project
from timonel.cli.project import KINDS, write_project
from timonel.storage import find_workspace


@pytest.fixture
def few_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Saves a second per project."""
    write = project.write_digits
    monkeypatch.setattr(
        "timonel.cli.project._SAMPLES",
        {
            "image": ("digits", lambda folder: write(folder, 20)),
            "table": ("patients.csv", project.write_table),
        },
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_project_is_written_whole(kind: str, here: Path, timonel: Timonel, few_digits) -> None:
    outcome = timonel("init", kind, "project")
    assert outcome.exit_code == 0
    names = {path.name for path in (here / "project").iterdir()}
    data = {"image": "digits", "table": "patients.csv"}[kind]
    assert names == {"train.py", "README.md", ".gitignore", data}
    assert f"wrote project/{data}" in outcome.out


@pytest.mark.parametrize("kind", KINDS)
def test_the_script_is_short_and_has_no_word_of_distribution(kind: str, tmp_path: Path) -> None:
    write_project(kind, tmp_path, with_data=False)
    text = (tmp_path / "train.py").read_text()
    ast.parse(text)
    assert len(text.splitlines()) <= 60
    for word in ("strategy", "distribute", "TF_CONFIG", "worker"):
        assert word not in text.lower()


@pytest.mark.parametrize(("kind", "absent"), [("image", "digits"), ("table", "patients.csv")])
def test_without_data(kind: str, absent: str, here: Path, timonel: Timonel) -> None:
    outcome = timonel("init", kind, "--no-data")
    assert outcome.exit_code == 0
    assert not (here / absent).exists()
    (line,) = [line for line in outcome.out.splitlines() if line.startswith("next: ")]
    assert f"convert {absent}" not in line
    assert "your " in line
    readme = (here / "README.md").read_text()
    assert not re.search(r"digits|patients|diabetes|progression|\$", readme)
    assert "your " in readme


@pytest.mark.parametrize("kind", KINDS)
def test_the_readme_describes_the_sample_data(kind: str, tmp_path: Path, few_digits: None) -> None:
    write_project(kind, tmp_path)
    readme = (tmp_path / "README.md").read_text()
    assert {"image": "convert digits/ data", "table": "convert patients.csv data"}[kind] in readme
    assert {"image": "digits/7/0009.png", "table": "--label progression"}[kind] in readme
    assert "$" not in readme
    assert max(map(len, readme.splitlines())) <= 100


def test_a_kind_that_is_misspelt(here: Path, timonel: Timonel) -> None:
    line = timonel("init", "images").error_line
    assert line.endswith("'images' is not one of 'image', 'table': did you mean 'image'?")
    assert "Value error" not in line
    assert timonel("init", "sound").error_line.endswith("see 'timonel init --help'")


def test_a_project_in_a_project_has_a_workspace_of_its_own(
    here: Path, timonel: Timonel, few_digits: None, monkeypatch
) -> None:
    find_workspace(here / ".timonel")
    outcome = timonel("init", "image", "inner")
    assert f"as {here / '.timonel'} belongs to a project above" in outcome.out
    monkeypatch.chdir(here / "inner")
    assert timonel("convert", "digits", "data").err == ""
    assert len(list((here / "inner" / ".timonel" / "runs").iterdir())) == 1
    assert list((here / ".timonel" / "runs").iterdir()) == []


def test_work_that_goes_to_a_workspace_above_says_so(
    here: Path, timonel: Timonel, few_digits: None, monkeypatch
) -> None:
    timonel("init", "image")
    find_workspace(here / ".timonel")
    (here / "below").mkdir()
    monkeypatch.chdir(here / "below")
    line = (
        f"using the workspace {here / '.timonel'} of a parent folder "
        "(--workspace FOLDER uses another)\n"
    )
    assert timonel("convert", "../digits", "data").err == line
    assert timonel("-q", "convert", "../digits", "again").err == ""
    assert timonel("runs").err == ""
    for wrong in (("convert", "../none", "data2"), ("convert",), ("train", "none.py")):
        assert timonel(*wrong).error_line
    assert timonel("-w", "own", "convert", "../digits", "more").err == ""


def test_nothing_is_overwritten_and_the_error_lists_what_is_there(
    here: Path, timonel: Timonel, few_digits: None
) -> None:
    (here / "train.py").write_text("mine")
    (here / "README.md").write_text("mine")
    outcome = timonel("init", "image")
    assert outcome.exit_code == 2
    assert "README.md, train.py" in outcome.error_line
    assert sorted(path.name for path in here.iterdir()) == ["README.md", "train.py"]
    assert (here / "train.py").read_text() == "mine"


def test_an_unwritable_place_is_one_line(here: Path, timonel: Timonel, few_digits: None) -> None:
    (here / "file").write_text("")
    outcome = timonel("init", "image", "file/project")
    assert outcome.exit_code == 2
    assert "cannot write" in outcome.error_line


def test_a_failure_on_the_way_leaves_nothing(tmp_path: Path, monkeypatch) -> None:
    def fail(_: Path) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("timonel.cli.project._SAMPLES", {"image": ("digits", fail)})
    with pytest.raises(Exception, match="No space left on device"):
        write_project("image", tmp_path / "p")
    assert list((tmp_path / "p").iterdir()) == []


def test_digits_are_the_real_ones_and_the_same_each_time(tmp_path: Path) -> None:
    from PIL import Image

    assert project.write_digits(tmp_path / "a", 30) == 30
    project.write_digits(tmp_path / "b", 30)
    files = sorted((tmp_path / "a").glob("*/*.png"))
    assert len(files) == 30
    for path in files:
        assert path.read_bytes() == (tmp_path / "b" / path.relative_to(tmp_path / "a")).read_bytes()
    with Image.open(tmp_path / "a" / "0" / "0000.png") as image:
        assert (image.size, image.mode) == ((8, 8), "L")
        # The first digit of the set: its second row is 0 0 13 15 10 15 5 0 of 16.
        assert image.getpixel((2, 1)) == round(13 * 255 / 16)


def test_the_table_has_numbers_a_category_and_two_classes(tmp_path: Path) -> None:
    assert project.write_table(tmp_path / "t.csv") == 442
    with (tmp_path / "t.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["sex"] for row in rows} == {"sex_1", "sex_2"}
    assert {row["progression"] for row in rows} == {"fast", "slow"}
    assert all(float(row["bmi"]) > 0 for row in rows)

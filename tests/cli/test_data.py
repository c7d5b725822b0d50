"""Converting and looking at datasets, and every bad input that the command line can meet there."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import pytest
import typer

import timonel.data
from tests.cli.conftest import Timonel
from timonel.cli import project
from timonel.cli.commands import data
from timonel.cli.commands.convert import parse_columns, parse_splits
from timonel.errors import SpecError


@pytest.fixture
def digits(here: Path) -> Path:
    """A hundred digits in label folders."""
    project.write_digits(here / "digits", 100)
    return here / "digits"


def nothing_left(folder: Path) -> bool:
    """Tell whether a failed conversion has left nothing behind but its record."""
    return not [path.name for path in folder.iterdir() if path.name.startswith((".tmp-", "data"))]


def test_convert_reports_what_it_made(here: Path, timonel: Timonel, digits: Path) -> None:
    outcome = timonel("convert", "digits", "data/digits")
    assert outcome.exit_code == 0
    assert "100 images" in outcome.out
    assert "next: timonel train train.py --data data/digits" in outcome.out
    assert "\x1b[" not in outcome.out
    assert (here / "data" / "digits" / "manifest.json").is_file()


def test_notes_are_whole_in_a_pipe(
    here: Path, timonel: Timonel, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [f"{i % 9},{'$1.50' if i else 'n' * 40},{i % 2}" for i in range(40)]
    (here / "rows.csv").write_text("\n".join(["a,with a long name,y", *rows]))
    monkeypatch.setenv("COLUMNS", "80")
    made = timonel("convert", "rows.csv", "data", "--label", "y")
    for out in (made.out, timonel("data", "show", "data").out):
        (line,) = [line for line in out.splitlines() if line.startswith("with a long name")]
        assert line.rstrip().endswith("currency, percent or thousands signs")
        assert "…" not in out


def test_a_separator_is_told_once(here: Path, timonel: Timonel) -> None:
    rows = [f"{i % 9};{i % 2}" for i in range(40)]
    (here / "rows.csv").write_text("\n".join(["a;y", *rows]))
    made = timonel("convert", "rows.csv", "data", "--label", "y")
    assert made.out.count("values are separated by semicolons") == 1


def test_convert_as_json_is_the_manifest(timonel: Timonel, digits: Path) -> None:
    value = json.loads(timonel("data", "convert", "digits", "data/digits", "--json").out)
    assert sum(value["counts"].values()) == 100
    assert value["uri"].endswith("data/digits")
    assert value == json.loads(timonel("data", "show", "data/digits", "--json").out)


def test_list_show_and_verify(here: Path, timonel: Timonel, digits: Path) -> None:
    timonel("convert", "digits", "data/digits", "--splits", "0.5,0.25,0.25")
    (entry,) = json.loads(timonel("data", "--json").out)["datasets"]
    assert set(entry) == {"name", "uri", "digest", "records", "created_at", "run"}
    assert (entry["name"], entry["records"]) == ("digits", 100)
    assert "digits" in timonel("data", "list").out
    assert "LABEL" in timonel("data", "show", "data/digits").out
    assert "100 records, all intact" in timonel("data", "verify", "data/digits").out
    shard = next((here / "data" / "digits").glob("*.tfrecord"))
    shard.write_bytes(shard.read_bytes()[:-1] + b"!")
    outcome = timonel("data", "verify", "data/digits")
    assert outcome.exit_code == 3
    assert shard.name in outcome.error_line
    assert [line for line in outcome.out.splitlines() if line.startswith(shard.name)]
    value = json.loads(timonel("data", "verify", "data/digits", "--json").out)
    assert set(value) == {"uri", "shards", "records", "problem_count", "problems"}
    assert value["problem_count"] == len(value["problems"]) > 1


def test_records_are_shown(here: Path, timonel: Timonel, digits: Path) -> None:
    timonel("convert", "digits", "data/digits")
    outcome = timonel("data", "inspect", "data/digits", "-n", "2", "--label", "3", "--out", "out")
    assert outcome.out.count("PNG image, 8 x 8, L, ") == 2
    assert "2 images written to out" in outcome.out
    assert len(list((here / "out").iterdir())) == 2
    value = json.loads(timonel("data", "inspect", "data/digits", "--number", "1", "--json").out)
    (record,) = value["records"]
    assert set(record) == {"split", "position", "key", "label", "features"}
    shard = next((here / "data" / "digits").glob("train*.tfrecord"))
    outcome = timonel("data", "inspect", shard, "-n", "1")
    assert "FEATURE" in outcome.out
    assert "record 0" in outcome.out
    value = json.loads(timonel("data", "inspect", shard, "--json").out)
    assert value["statistics"]["columns"]["image width"]["maximum"] == 8
    outcome = timonel("data", "inspect", "data/digits", "--key", "none")
    assert outcome.exit_code == 2
    assert "has the key 'none'" in outcome.error_line


def test_statistics_are_shown_by_split(here: Path, timonel: Timonel) -> None:
    rows = [f"{i},{'ab'[i % 2]}" for i in range(100)]
    (here / "rows.csv").write_text("\n".join(["size,y", *rows, "1e3,a"]))
    timonel("convert", "rows.csv", "data", "--label", "y", "--columns", "size=float")
    outcome = timonel("data", "stats", "data")
    assert [line.split()[:2] for line in outcome.out.splitlines()][1:4] == [
        ["size", split] for split in ("train", "validation", "test")
    ]
    value = json.loads(timonel("data", "stats", "data", "--json", "--split", "train").out)
    assert set(value["splits"]) == {"train"}
    assert set(value["splits"]["train"]["columns"]["size"]) == {
        "type",
        "count",
        "missing",
        "mean",
        "std",
        "minimum",
        "maximum",
        "quantiles",
        "histogram",
    }
    assert timonel("data", "stats", "data", "--split", "tset").exit_code == 2


def test_a_report_is_written(here: Path, timonel: Timonel, digits: Path) -> None:
    timonel("convert", "digits", "data/digits")
    outcome = timonel("data", "report", "data/digits", "--out", "page.html")
    assert "page.html: 100 records" in outcome.out
    assert "<h2>Samples</h2>" in (here / "page.html").read_text()
    value = json.loads(timonel("data", "report", "data/digits", "--json").out)
    assert set(value) == {"uri", "records", "identical", "near_duplicates", "warnings"}
    assert (here / "report.html").is_file()
    outcome = timonel("data", "report", "data/digits", "--out", "page.txt")
    assert outcome.exit_code == 2
    assert "a report is an HTML page" in outcome.error_line


@pytest.mark.parametrize("command", ["verify", "inspect", "stats", "report", "diff"])
def test_commands_and_functions_have_the_same_options(command: str) -> None:
    group = typer.main.get_command(data.app)
    params = {param.name: param for param in group.commands[command].params}
    only = {"json", "help", "fail_on"}  # Comparison.fails() is the same in Python
    signature = inspect.signature(getattr(timonel.data, command)).parameters
    assert params.keys() - only == signature.keys() - {"progress"}
    for name in params.keys() & signature.keys():
        default = signature[name].default
        if default is not inspect.Parameter.empty:
            assert str(params[name].default) == str(default), name


def test_differences_can_fail_a_command(here: Path, timonel: Timonel) -> None:
    for name, step in (("old", 1), ("new", 3)):
        rows = [f"{i * step % 1000 / 7:.3f},{'ab'[i % 2]}" for i in range(300)]
        (here / f"{name}.csv").write_text("\n".join(["size,y", *rows]))
        timonel("convert", f"{name}.csv", name, "--label", "y")
    outcome = timonel("data", "diff", "old", "new")
    assert outcome.exit_code == 0
    assert "1 distribution differs by more than the limit" in outcome.out
    assert timonel("data", "diff", "old", "new", "--fail-on", "drift").exit_code == 1
    assert timonel("data", "diff", "old", "new", "--fail-on", "schema").exit_code == 0
    assert "no distribution differs" in timonel("data", "diff", "old", "--fail-on", "any").out
    value = json.loads(timonel("data", "diff", "old", "new", "--json").out)
    assert set(value) == {"schema", "distances"}
    assert value["distances"][0]["column"] == "size"
    assert value["distances"][0]["differs"] is True
    outcome = timonel("data", "diff", "old", "--min-distance", "7")
    assert outcome.exit_code == 2
    assert "distance from 0 to 1" in outcome.error_line


def test_lineage_leads_back_to_the_raw_files(timonel: Timonel, digits: Path) -> None:
    timonel("convert", "digits", "data/digits")
    assert "files digits" in timonel("lineage", "data/digits").out
    graph = json.loads(timonel("lineage", "data/digits", "--json").out)
    assert set(graph) == {"focus", "nodes", "edges"}
    assert {node["node"] for node in graph["nodes"]} == {"run", "artifact"}
    outcome = timonel("lineage", "nothing-of-that-name")
    assert outcome.exit_code == 2
    assert "nothing-of-that-name" in outcome.error_line


@pytest.mark.parametrize(
    ("make", "source", "argv"),
    [
        (lambda d: None, "absent", []),
        (lambda d: (d / "empty").mkdir(), "empty", []),
        (lambda d: project.write_digits(d / "one" / "x", 1), "one/x/0", []),
        (lambda d: project.write_table(d / "t.csv"), "t.csv", ["--label", "nope"]),
        (lambda d: project.write_table(d / "t.csv"), "t.csv", []),
        (lambda d: None, "digits", ["--splits", "a,b"]),
        (lambda d: None, "digits", ["--splits", "0.9,0.9,0.9"]),
        (lambda d: None, "digits", ["--shard-bytes", "many"]),
    ],
    ids=[
        "no such folder",
        "empty folder",
        "no labels",
        "missing column",
        "no label",
        "splits are words",
        "splits exceed one",
        "no size",
    ],
)
def test_a_bad_source_is_one_line(
    make, source: str, argv: list[str], here: Path, timonel: Timonel, digits: Path
) -> None:
    make(here)
    outcome = timonel("convert", source, "data", *argv)
    # Whether the request or the data is wrong is for the data package to say.
    assert outcome.exit_code in {2, 3}
    assert outcome.error_line
    assert nothing_left(here)


@pytest.mark.parametrize(
    "command",
    [
        ("convert", "rows.csv", "data"),
        ("data", "convert", "rows.csv", "data"),
        ("data", "schema", "rows.csv"),
    ],
)
def test_a_second_label_column_is_refused(
    command: tuple[str, ...], here: Path, timonel: Timonel
) -> None:
    (here / "rows.csv").write_text("a,b,c\n" + "1,2,3\n" * 20)
    outcome = timonel(*command, "--label", "b", "--label=c")
    assert outcome.exit_code == 2
    assert "--label: a dataset has one label column" in outcome.error_line
    assert nothing_left(here)


def test_one_label_only(here: Path, timonel: Timonel) -> None:
    project.write_digits(here / "all", 40)
    (here / "one").mkdir()
    (here / "all" / "3").rename(here / "one" / "3")
    outcome = timonel("convert", "one", "data")
    assert outcome.exit_code in {2, 3}
    assert "label" in outcome.error_line
    assert nothing_left(here)


def test_an_unreadable_image_names_itself(here: Path, timonel: Timonel, digits: Path) -> None:
    victim = min((digits / "3").iterdir())
    victim.write_bytes(b"\x89PNG\r\n\x1a\nbroken")
    outcome = timonel("convert", "digits", "data", "--max-rejected", "0")
    assert outcome.exit_code == 3
    assert victim.name in outcome.error_line
    outcome = timonel("convert", "digits", "data")
    assert outcome.exit_code == 0
    assert "1 image rejected" in outcome.out


def test_an_output_that_exists(here: Path, timonel: Timonel, digits: Path) -> None:
    timonel("convert", "digits", "data")
    before = (here / "data" / "manifest.json").read_bytes()
    outcome = timonel("convert", "digits", "data")
    assert outcome.exit_code == 2
    assert "--overwrite" in outcome.error_line
    assert (here / "data" / "manifest.json").read_bytes() == before
    assert timonel("convert", "digits", "data", "--overwrite").exit_code == 0


def test_an_unwritable_output(here: Path, timonel: Timonel, digits: Path) -> None:
    (here / "file").write_text("")
    outcome = timonel("convert", "digits", "file/data")
    assert outcome.exit_code == 2
    assert "cannot write" in outcome.error_line


def test_splits_and_columns_are_parsed() -> None:
    assert parse_splits("0.5, 0.25,0.25") == (0.5, 0.25, 0.25)
    assert parse_columns(["zip=categorical,price=float", "a=b=numeric", "x,y=drop"]) == {
        "zip": "categorical",
        "price": "float",
        "a=b": "numeric",
        "x,y": "drop",
    }
    for wrong in ("zip", "=numeric"):
        with pytest.raises(SpecError, match="NAME=TYPE"):
            parse_columns([wrong])
    with pytest.raises(SpecError, match="unknown column type 'word': use number"):
        parse_columns(["zip=word"])


def test_what_was_inferred_of_each_column_is_printed(here: Path, timonel: Timonel) -> None:
    rows = [
        f"2024-01-{i % 28 + 1:02d},{'n.a. yet' if i == 3 else i},note {i},{'ab'[i % 2]}"
        for i in range(120)
    ]
    (here / "t.csv").write_text("\n".join(["day,price,notes,y", *rows]))
    outcome = timonel("convert", "t.csv", "data/t", "--label", "y")
    lines = [line.split() for line in outcome.out.splitlines()]
    assert ["day", "date"] in [line[:2] for line in lines]
    assert ["price", "number"] in [line[:2] for line in lines]
    text = " ".join(outcome.out.split())
    assert "UTC dates: change it with --columns day=category or =drop" in text
    assert "warning: column notes dropped: identifiers or free text" in text
    assert "keep it with --columns notes=text, or =category" in text
    assert "1 value is no finite 32-bit number: row rejected" in text
    assert "'n.a. yet' is not a finite number in column 'price' in line 5" in text
    assert outcome.err == ""
    given = ("--columns", "price=float,notes=drop,day=string")
    outcome = timonel("convert", "t.csv", "data/t", "--label", "y", "--overwrite", *given)
    schema = json.loads(timonel("data", "show", "data/t", "--json").out)["schema"]
    assert [(column["name"], column["type"]) for column in schema["columns"]] == [
        ("day", "categorical"),
        ("price", "numeric"),
    ]
    assert "dropped" not in outcome.out

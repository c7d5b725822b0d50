from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.data.conftest import MakeCsv
from timonel.data.schema import CategoricalColumn, NumericColumn, TableSchema
from timonel.data.sources import Description, Scan, Source, SourceOptions, UnusableError
from timonel.data.sources.csv import CsvSource
from timonel.errors import DataError, SpecError
from timonel.storage import digest_file
from timonel.testing.sources import SourceContract


class TestContract(SourceContract):
    @pytest.fixture
    def source(self, make_csv: MakeCsv) -> Source:
        return CsvSource(make_csv(), SourceOptions(label="good"))


def scanned(path: Path, label: str = "y", **options: object) -> tuple[CsvSource, Scan]:
    source = CsvSource(path, SourceOptions.model_validate({"label": label, **options}))
    return source, source.scan()


def described(path: Path, **options: object) -> tuple[TableSchema, Description]:
    source, scan = scanned(path, **options)
    description = source.describe({entry.key: None for entry in scan.entries}, scan.entries)
    assert isinstance(description.schema, TableSchema)
    return description.schema, description


def test_rows_come_with_their_values_and_labels(make_csv: MakeCsv) -> None:
    path = make_csv("a,b,y", "1.5, red ,yes", "-2e3,blue,no")
    source, scan = scanned(path)
    assert [(entry.key, entry.label) for entry in scan.entries] == [
        ("rows.csv#1", "yes"),
        ("rows.csv#2", "no"),
    ]
    assert [dict(source.read(entry).features) for entry in scan.entries] == [
        {"column/a": 1.5, "column/b": "red"},
        {"column/a": -2000.0, "column/b": "blue"},
    ]


def test_types_are_inferred_from_all_values(make_csv: MakeCsv) -> None:
    rows = [f"{i},{i},0{i},{i}" for i in range(2000)]
    schema, _ = described(make_csv("late,number,code,y", *rows, "word,1,01,0"), task="regression")
    assert {column.name: column.type for column in schema.columns} == {
        "late": "categorical",
        "number": "numeric",
        "code": "categorical",
    }


def test_types_may_be_given(make_csv: MakeCsv) -> None:
    path = make_csv("zip,code,y", "1,01,a", "2,02,b")
    schema, _ = described(path, columns={"zip": "categorical", "code": "numeric"})
    assert [column.type for column in schema.columns] == ["categorical", "numeric"]


def test_figures_are_of_the_training_rows_without_missing_values(make_csv: MakeCsv) -> None:
    path = make_csv("a,b,y", "1,x,p", "NA,,q", "3,z,p", "1000,only in test,q")
    source, scan = scanned(path)
    schema = source.describe({}, scan.entries[:3]).schema
    assert isinstance(schema, TableSchema)
    assert schema.columns == (
        NumericColumn(name="a", mean=2, std=1, minimum=1, maximum=3, missing=1),
        CategoricalColumn(name="b", vocabulary=("x", "z"), missing=1),
    )
    missing = source.read(scan.entries[1]).features
    assert math.isnan(missing["column/a"])  # type: ignore[arg-type] # a number
    assert missing["column/b"] == ""


def test_a_vocabulary_keeps_the_most_frequent_words(
    make_csv: MakeCsv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("timonel.data.sources.columns.MAX_VOCABULARY", 2)
    words = ["c", "b", "a", "c", "b", "c"]
    path = make_csv("w,y", *(f"{word},{i % 2}" for i, word in enumerate(words)))
    schema, _ = described(path)
    assert schema.columns == (CategoricalColumn(name="w", vocabulary=("b", "c"), dropped=1),)


@pytest.mark.parametrize(
    ("labels", "task", "names"),
    [
        (["1", "0", "1", "0"], "classification", {"0", "1"}),
        (["1.0", "2", "1", "2.0"], "classification", {"1", "2"}),
        (["yes", "no", "1", "2"], "classification", {"yes", "no", "1", "2"}),
        (["0.5", "1", "1", "0.5"], "regression", {0.5, 1.0}),
        ([str(i) for i in range(50)], "regression", set(map(float, range(50)))),
    ],
)
def test_the_task_is_inferred(
    make_csv: MakeCsv, labels: list[str], task: str, names: set[object]
) -> None:
    _, scan = scanned(make_csv("a,y", *(f"{i},{label}" for i, label in enumerate(labels))))
    assert scan.task == task
    assert {entry.label for entry in scan.entries} == names


def test_the_task_may_be_given(make_csv: MakeCsv) -> None:
    path = make_csv("a,y", "1,0.5", "2,1.5", "3,0.5")
    assert scanned(path, task="classification")[1].entries[0].label == "0.5"
    assert scanned(make_csv("a,y", "1,0", "2,1"), task="regression")[1].entries[1].label == 1.0
    with pytest.raises(DataError, match="expected numbers in the label column 'y'"):
        scanned(make_csv("a,y", "1,yes", "2,no"), task="regression")


def test_empty_lines_and_a_byte_order_mark_are_ignored(make_csv: MakeCsv) -> None:
    path = make_csv("\ufeffa,y", "", "1,x", "", "2,z", "")
    _, scan = scanned(path)
    assert len(scan.entries) == 2


def test_quoted_values_may_hold_commas_and_lines(make_csv: MakeCsv) -> None:
    source, scan = scanned(make_csv("a,y", '"one, two",x', '"three\nfour",z'))
    features = [source.read(entry).features["column/a"] for entry in scan.entries]
    assert features == ["one, two", "three\nfour"]


def test_tabs_separate_the_values_of_a_tsv(make_csv: MakeCsv) -> None:
    schema, _ = described(make_csv("a\ty", "1\tx", "2\tz", name="rows.tsv"))
    assert schema.columns[0].type == "numeric"


def test_the_digest_is_that_of_the_file(make_csv: MakeCsv) -> None:
    path = make_csv("a,y", "1,x", "2,z")
    _, description = described(path)
    assert description.digest == digest_file(path)
    assert (description.files, description.bytes) == (1, path.stat().st_size)


def test_a_column_without_values_is_left_out(make_csv: MakeCsv) -> None:
    schema, _ = described(make_csv("a,empty,y", "1,,x", "2,NA,z"))
    assert [column.name for column in schema.columns] == ["a"]
    assert scanned(make_csv("a,empty,y", "1,,x", "2,NA,z"))[1].ignored == [
        "column 'empty' (no values)"
    ]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["a,b", "1,2"], r"expected a column 'y' in .*, found a, b: give the name"),
        (["a,a,y", "1,2,x"], r"expected columns of different names in .*, found 'a' 2 times"),
        (["a,,y", "1,2,x"], r"expected a name for each column of .*, column 2 has none"),
        (["", ""], r"expected a CSV file with a header at .*, found an empty file"),
        (["a,y"], r"expected rows in .*, found only a header"),
        (["y", "x", "z"], r"expected columns besides the label 'y'"),
        (["a,y", "1,x", "2,x"], r"expected at least two labels in column 'y' .*, found only 'x'"),
        (["a,y", "1,x", "2,"], r"rows\.csv#2: expected a label in column 'y', got none in line 3"),
        (["a,y", "1,x", "", "2"], r"rows\.csv line 4: expected 2 values, got 1"),
        (["a,y", '1,"x', "2,z,3"], r"rows\.csv|expected a CSV file"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(
    make_csv: MakeCsv, lines: list[str], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        scanned(make_csv(*lines))


def test_a_file_that_is_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "latin.csv"
    path.write_bytes("a,y\n1,x\n2,niña\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"expected UTF-8 in .*, got the byte 0xf1 in line 3: save"):
        scanned(path)
    path.write_bytes("año,y\n1,x\n".encode("latin-1"))
    with pytest.raises(DataError, match="in line 1"):
        scanned(path)


def test_no_label_was_given(make_csv: MakeCsv) -> None:
    with pytest.raises(SpecError, match="give it with --label; the columns are a, y"):
        CsvSource(make_csv("a,y", "1,x")).scan()


def test_a_type_for_a_column_that_is_not_there(make_csv: MakeCsv) -> None:
    with pytest.raises(SpecError, match="got one for 'b'"):
        scanned(make_csv("a,y", "1,x", "2,z"), columns={"b": "numeric"})


def test_a_word_in_a_column_that_should_be_numeric(make_csv: MakeCsv) -> None:
    path = make_csv("a,y", "1,x", "", "two,z")
    with pytest.raises(DataError, match=r"in column 'a' of .*, got 'two' in line 4"):
        scanned(path, columns={"a": "numeric"})


def test_bad_rows_may_be_skipped(make_csv: MakeCsv) -> None:
    path = make_csv("a,y", "1,x", "2,z,3", "3,", "4,z")
    with pytest.raises(UnusableError):
        scanned(path)
    _, scan = scanned(path, skip_bad=True)
    assert [entry.label for entry in scan.entries] == ["x", "z"]
    assert scan.skipped == [
        ("rows.csv line 3", "expected 2 values, got 3"),
        ("rows.csv#2", "expected a label in column 'y', got none in line 4"),
    ]

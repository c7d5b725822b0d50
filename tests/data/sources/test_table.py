from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from tests.contracts.sources import SourceContract
from tests.data.conftest import MakeCsv
from tests.data.sources.summaries import statistics_of
from timonel.data.schema import (
    CategoricalColumn,
    ColumnRole,
    DateColumn,
    NumericColumn,
    TableSchema,
    TextColumn,
)
from timonel.data.sources import Description, RawFiles, Scan, Source, SourceOptions
from timonel.data.sources.columns import Kinds
from timonel.data.sources.markers import KEEP_WORD
from timonel.data.sources.table import TableSource
from timonel.data.sources.tablefile import MemoryTable
from timonel.errors import DataError, SpecError
from timonel.storage import digest_file
from timonel.storage.location import Location


class TestContract(SourceContract):
    @pytest.fixture
    def source(self, make_csv: MakeCsv) -> Source:
        return TableSource(Location(make_csv()), SourceOptions(label="good"))


NO_FILES = RawFiles("sha256:", 0, 0)


def scanned(path: Path, label: str = "y", **options: object) -> tuple[TableSource, Scan]:
    source = TableSource(Location(path), SourceOptions.model_validate({"label": label, **options}))
    scan = source.scan()
    return source, replace(scan, entries=list(scan.entries))


def described(path: Path, **options: object) -> tuple[TableSchema, Description]:
    source, scan = scanned(path, **options)
    description = source.describe({"train": statistics_of(source, scan.entries)}, NO_FILES)
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
    rows = [f"{'word' if i % 7 == 6 else i},{i / 2},0{i % 9},{i}" for i in range(2000)]
    schema, _ = described(make_csv("mixed,number,code,y", *rows), columns={"mixed": "categorical"})
    assert {column.name: column.type for column in schema.columns} == {
        "mixed": "categorical",
        "number": "numeric",
        "code": "categorical",
    }


@pytest.mark.parametrize("task", [None, "classification", "regression"])
def test_the_values_of_a_column_are_classified_once(
    task: str | None, make_csv: MakeCsv, monkeypatch: pytest.MonkeyPatch
) -> None:
    classified: list[int] = []
    of = Kinds.of
    monkeypatch.setattr(Kinds, "of", lambda texts: classified.append(len(texts)) or of(texts))
    rows = [f"{i},{i},{'red' if i % 3 else 'blue'},{i}" for i in range(60)]
    scanned(make_csv("a,b,c,y", *rows), columns={"b": "numeric"}, task=task)
    assert classified == [60] * 4


def reasons(scan: Scan) -> list[tuple[str, str]]:
    return [(each.key, each.reason) for each in scan.rejected]


def role(path: Path, name: str = "a", **options: object) -> ColumnRole:
    _, scan = scanned(path, **options)
    return next(column for column in scan.columns if column.name == name)


def test_a_few_bad_values_do_not_make_a_numeric_column_categorical(make_csv: MakeCsv) -> None:
    path = make_csv("a,y", *(f"{'n.a. yet' if i == 30 else i},{i % 2}" for i in range(100)))
    found = role(path)
    assert (found.role, found.is_doubtful) == ("numeric", False)
    assert found.note == "1 value is no finite 32-bit number: row rejected"
    _, scan = scanned(path)
    assert len(scan.entries) == 99
    (rejected,) = scan.rejected
    assert rejected.key == "rows.csv#31"
    assert (rejected.column, rejected.value) == ("a", "n.a. yet")
    assert rejected.reason == "'n.a. yet' is not a finite number in column 'a' in line 32"
    assert rejected.hint.endswith("--columns a=category")
    assert role(path, columns={"a": "categorical"}).note == "as given"


def test_a_row_with_several_bad_values_is_rejected_once(make_csv: MakeCsv) -> None:
    path = make_csv("a,b,y", "1,1,p", "x,z,q", "3,3,q", "4,inf,p", "5,5,", "6,6,p", "7,7,q")
    _, scan = scanned(path)
    assert [(each.key, each.column) for each in scan.rejected] == [
        ("rows.csv#2", "a"),
        ("rows.csv#4", "b"),
        ("rows.csv#5", "y"),
    ]
    assert len(scan.entries) == 4


@pytest.mark.parametrize(
    ("word", "fault"),
    [
        ("inf", "is not a finite number"),
        ("-Infinity", "is not a finite number"),
        ("1e999", "is too large for a 32-bit float"),
        ("1e39", "is too large for a 32-bit float"),
    ],
)
def test_rows_with_an_infinite_value_are_rejected(make_csv: MakeCsv, word: str, fault: str) -> None:
    path = make_csv("a,y", *(f"{word if i % 4 == 3 else i},{i % 2}" for i in range(40)), "NaN,1")
    assert role(path).note == "10 values are no finite 32-bit numbers: rows rejected"
    rejected = scanned(path)[1].rejected[0]
    assert rejected.reason == f"'{word}' {fault} in column 'a' in line 5"
    assert rejected.hint == "leave the value empty, which means missing, or correct it"
    schema, _ = described(path)
    (column,) = schema.columns
    assert isinstance(column, NumericColumn)
    assert (column.maximum, column.missing) == (38, 1)
    assert math.isfinite(column.std)


@pytest.mark.parametrize(
    ("value", "kind", "note"),
    [
        ("2024-01-{0:02d}", "date", "dates: change"),
        ("{0}/12/2023 10:30", "dmy", "dates with the day first: change"),
        ("2024-01-01T10:{0:02d}:00Z", "date", "dates: change"),
        ("1/2/2{0:03d}", "drop", "dates with an unknown order"),
        ("H{0:05d}", "drop", "identifiers or free text: 28 different in 28 values: keep"),
        ("the number {0} of them", "text", "free text: 28 different in 28 values: change"),
    ],
)
def test_dates_and_texts_are_inferred_where_they_are_clear(
    make_csv: MakeCsv, value: str, kind: str, note: str
) -> None:
    path = make_csv("a,b,y", *(f"{value.format(i)},{i},{i % 2}" for i in range(1, 29)))
    assert role(path).role == kind
    assert role(path).note.startswith(note)
    assert role(path).is_doubtful is (kind == "drop")
    schema, _ = described(path)
    assert [column.name for column in schema.columns] == ["b"] if kind == "drop" else ["a", "b"]
    schema, _ = described(path, columns={"a": "categorical", "b": "drop"})
    assert [column.name for column in schema.columns] == ["a"]


@pytest.mark.parametrize("kind", ["drop", "text"])
def test_a_dropped_date_or_text_moves_no_row(make_csv: MakeCsv, kind: str) -> None:
    rows = [f"2024-01-{i + 1:02d},it is the number {i},{i},{i % 2}" for i in range(28)]
    path = make_csv("day,note,b,y", *rows)
    groups = {
        name: [entry.group for entry in scanned(path, columns={name: kind})[1].entries]
        for name in ("day", "note")
    }
    same = [entry.group for entry in scanned(path)[1].entries]
    assert groups == {"day": same, "note": same}


def test_dates_with_a_clear_order_may_be_read_in_both(make_csv: MakeCsv) -> None:
    path = make_csv("day,b,y", *(f"1/{i}/2024,{i},{i % 2}" for i in range(1, 12)))
    _, scan = scanned(path, columns={"day": "mdy"})
    assert next(each for each in scan.columns if each.name == "day").note == "as given"
    schema, _ = described(path, columns={"day": "mdy"})
    (day, _) = schema.columns
    assert isinstance(day, DateColumn)
    assert day.values == "2024-01-01 00:00:00 to 2024-01-11 00:00:00 UTC"


def test_a_text_has_the_most_frequent_words_of_the_training_rows(make_csv: MakeCsv) -> None:
    path = make_csv("t,y", '"Good, good wine!",1', '"wine is bad",0', ",1", "Wine?,0")
    schema, _ = described(path, columns={"t": "text"}, max_vocabulary=2)
    (text,) = schema.columns
    assert isinstance(text, TextColumn)
    assert (text.vocabulary, text.dropped, text.missing) == (("bad", "wine"), 2, 1)
    assert text.values == "up to 16 characters, 2 words, 1 missing"
    given = {"t": ("bad", "good")}
    schema, _ = described(path, columns={"t": "text"}, vocabularies=given)
    assert schema.columns[0].vocabulary == ("bad", "good")  # type: ignore[union-attr] # a text


def test_a_split_column_assigns_the_splits(make_csv: MakeCsv) -> None:
    path = make_csv(
        "a,split,y",
        "1,TRAIN,x",
        "2,validation,z",
        "3,Test,x",
        "4,UNASSIGNED,x",
        "5,DISCARD,x",
        "6, ,x",
    )
    source, scan = scanned(path)
    assert [entry.split for entry in scan.entries] == ["train", "validation", "test", None, None]
    assert scan.ignored == ["rows.csv#5 (split DISCARD)"]
    assert set(source.read(scan.entries[0]).features) == {"column/a"}
    assert role(path, "split", columns={"split": "categorical"}).role == "categorical"
    with pytest.raises(DataError, match=r"in column 'a' of .*, got '1'"):
        scanned(path, columns={"a": "split"})


@pytest.mark.parametrize(
    ("name", "values", "found"),
    [
        ("n", range(7, 47), "drop"),
        ("n", [*range(39), 40], "numeric"),
        ("customer_id", range(400, 0, -10), "drop"),
        ("PassengerId", range(400, 0, -10), "drop"),
        ("ID", [*range(39), 38], "numeric"),
        ("arid", range(400, 0, -10), "numeric"),
    ],
)
def test_a_row_id_is_dropped(
    make_csv: MakeCsv, name: str, values: Sequence[int], found: str
) -> None:
    path = make_csv(
        f"{name},b,y", *(f"{value},{value % 7},{i % 2}" for i, value in enumerate(values))
    )
    assert role(path, name).role == found
    if found == "drop":
        note = f"row id: a different whole number in each row: keep it with --columns {name}=number"
        assert role(path, name).note == note
        assert role(path, name).is_doubtful
        assert role(path, name, columns={name: "numeric"}).role == "numeric"
        assert role(path, name, columns={"b": "drop"}).role == "numeric", "nothing else is left"


@pytest.mark.parametrize(
    "value",
    [
        *("$1.{0}0", "1,{0}00", "{0}5%", "1 {0}00.25", "€ 12,{0}", "12.5 €"),
        *("1,{0}34.5", "{0},7", "-1.{0}34,5", "1\u202f{0}34,5"),
    ],
)
def test_numbers_with_other_signs_are_named_with_a_cure(make_csv: MakeCsv, value: str) -> None:
    path = make_csv("a;b;y", *(f"{value.format(i % 9)};{i % 7};{i % 2}" for i in range(40)))
    found = role(path)
    assert (found.role, found.is_doubtful) == ("categorical", True)
    assert found.note == (
        f"40 of 40 values are not numbers, such as {value.format(0)!r} in line 2: "
        "write plain numbers such as 1234.50, without currency, percent or thousands signs"
    )
    with pytest.raises(
        DataError, match=r"is not usable as a label: .*: write plain numbers such as 1234.50"
    ):
        scanned(path, "a")


def test_a_separator_is_read_off_the_header(make_csv: MakeCsv) -> None:
    for separator, name in (";", "semicolons"), ("\t", "tabs"), ("|", "bars"):
        path = make_csv(*(separator.join(row) for row in ("aby", "1,x", "2qz")))
        source, scan = scanned(path)
        assert source.read(scan.entries[0]).features == {"column/a": 1.0, "column/b": ","}
        assert scan.notes == [f"values are separated by {name}"]
    _, scan = scanned(make_csv("a;b,y", "1,x", "2,z"))
    assert [column.name for column in scan.columns] == ["a;b", "y"]
    assert scan.notes == []


def test_an_identifier_is_no_label(make_csv: MakeCsv) -> None:
    path = make_csv("a,y", *(f"{i},name {i}" for i in range(30)))
    with pytest.raises(DataError, match=r"is not usable as a label: .* 30 different in 30 values"):
        scanned(path)
    assert len(scanned(path, task="classification")[1].entries) == 30


def test_a_word_among_the_numbers_to_predict_is_named(make_csv: MakeCsv) -> None:
    path = make_csv("a,y", *(f"{i},{'sold' if i == 5 else i / 4}" for i in range(50)))
    _, scan = scanned(path)
    assert (scan.task, len(scan.entries)) == ("regression", 49)
    assert reasons(scan) == [("rows.csv#6", "no label but 'sold' in column 'y' in line 7")]


def test_types_may_be_given(make_csv: MakeCsv) -> None:
    path = make_csv("zip,code,y", "1,01,a", "2,02,b")
    schema, _ = described(path, columns={"zip": "categorical", "code": "numeric"})
    assert [column.type for column in schema.columns] == ["categorical", "numeric"]


def test_figures_are_of_the_training_rows_without_missing_values(make_csv: MakeCsv) -> None:
    path = make_csv("a,b,y", "1,x,p", "NA,,q", "3,z,p", "1000,only in test,q")
    source, scan = scanned(path)
    train = statistics_of(source, scan.entries[:3])
    schema = source.describe({"train": train}, NO_FILES).schema
    assert isinstance(schema, TableSchema)
    assert schema.columns == (
        NumericColumn(name="a", mean=2, std=1, minimum=1, maximum=3, missing=1),
        CategoricalColumn(name="b", vocabulary=("x", "z"), missing=1),
    )
    missing = source.read(scan.entries[1]).features
    assert math.isnan(missing["column/a"])  # type: ignore[arg-type] # a number
    assert missing["column/b"] == ""


def test_a_vocabulary_keeps_the_most_frequent_words(make_csv: MakeCsv) -> None:
    words = ["c", "b", "a", "c", "b", "c"]
    path = make_csv("w,y", *(f"{word},{i % 2}" for i, word in enumerate(words)))
    schema, _ = described(path, max_vocabulary=2)
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
    with pytest.raises(DataError, match="but the label column 'y' has words"):
        scanned(make_csv("a,y", "1,yes", "2,no"), task="regression")


def test_integers_that_a_label_rounds_are_a_warning(make_csv: MakeCsv) -> None:
    path = make_csv("a,y", "1,16777216", "2,16777217", "3,5")
    rounded = "label y: integers are rounded to 32-bit floats, such as 16777217 to 16777216"
    assert rounded in scanned(path, task="regression")[1].warnings[0]
    assert not scanned(path, task="classification")[1].warnings
    assert not scanned(make_csv("a,y", "1,0.1", "2,16777217"), task="regression")[1].warnings


def test_the_type_of_the_label_column_is_the_task(make_csv: MakeCsv) -> None:
    path = make_csv("a,y", "1,0", "2,1", "3,0")
    assert scanned(path, columns={"y": "numeric"})[1].task == "regression"
    assert scanned(path, columns={"y": "categorical"})[1].task == "classification"
    with pytest.raises(SpecError, match="the label column 'y' cannot be text"):
        scanned(path, columns={"y": "text"})
    with pytest.raises(SpecError, match="the label column 'y' cannot be number for multilabel"):
        scanned(path, columns={"y": "numeric"}, task="multilabel")


def test_words_for_missing_values_in_categories(make_csv: MakeCsv) -> None:
    path = make_csv(
        "a,n,y", *(f"{['NA', 'de', 'none', '?'][i % 4]},{i}.5,{i % 2}" for i in range(40))
    )
    source, scan = scanned(path)
    features = [source.read(entry).features["column/a"] for entry in scan.entries[:4]]
    assert features == ["", "de", "none", ""]
    cure = KEEP_WORD.format("category", "vocabulary of a")
    assert scan.warnings == [
        f"column a: '?' (10 rows), 'NA' (10 rows) are each missing: {cure}",
        "column a: 'none' (10 rows) is a category: leave cells empty where a value is missing",
    ]
    words = ["NA", "de", "none", "?"]
    source, scan = scanned(path, vocabularies={"a": words}, columns={"a": "categorical"})
    assert [source.read(entry).features["column/a"] for entry in scan.entries[:4]] == words
    assert scan.warnings == []


@pytest.mark.parametrize("separator", ["", "|x"])
def test_words_for_missing_labels(make_csv: MakeCsv, separator: str) -> None:
    labels = ["None", f"sick{separator}", "none"]
    path = make_csv("a,y", *(f"{i * 7},{labels[i % 3]}" for i in range(30)))
    _, scan = scanned(path)
    assert {entry.label for entry in scan.entries} == {f"sick{separator}", "none"}
    assert len(scan.rejected) == 10
    assert scan.rejected[0].reason == "no label but 'None' in column 'y' in line 2"
    cure = KEEP_WORD.format("class", "labels")
    assert scan.rejected[0].hint == cure
    assert scan.warnings == [
        f"column y: 'None' (10 rows) is no label: {cure}",
        "column y: 'none' (10 rows) is a class: leave cells empty where a value is missing",
    ]
    _, scan = scanned(path, labels=["None", "sick", "x", "none"])
    assert (len(scan.entries), scan.warnings) == (30, [])


def test_words_of_a_typed_table_are_words() -> None:
    numbers = [number / 2 for number in range(40)]
    table = pa.table({"a": ["NA", "de"] * 20, "n": numbers, "y": ["NA", "x", None, "x"] * 10})
    source = TableSource(MemoryTable(table), SourceOptions(label="y"))
    scan = source.scan()
    assert {entry.label for entry in scan.entries} == {"NA", "x"}
    assert scan.warnings == [
        "column a: 'NA' (20 rows) is a category: leave cells empty where a value is missing",
        "column y: 'NA' (10 rows) is a class: leave cells empty where a value is missing",
    ]


def test_labels_with_a_leading_zero_are_words(make_csv: MakeCsv) -> None:
    _, scan = scanned(make_csv("a,y", *(f"{i * 7 % 5},0{i % 3}" for i in range(30))))
    assert {entry.label for entry in scan.entries} == {"00", "01", "02"}


def test_empty_lines_and_a_byte_order_mark_are_ignored(make_csv: MakeCsv) -> None:
    path = make_csv("\ufeffa,y", "", "1,x", "", "2,z", "")
    _, scan = scanned(path)
    assert len(scan.entries) == 2


def test_quoted_values_may_hold_commas_and_lines(make_csv: MakeCsv) -> None:
    source, scan = scanned(make_csv("a,y", '"one, two",x', '"three\nfour",z'))
    features = [source.read(entry).features["column/a"] for entry in scan.entries]
    assert features == ["one, two", "three\nfour"]


@pytest.mark.parametrize(
    ("lines", "inside"),
    [
        (["a,y", '1,"x', "2,z", '3,x"', "4,z"], "2 lines that look like rows"),
        (["a,y", '1,"x', '2,z"', "", "4,x"], "1 line that looks like a row"),
        (["a,b,y", '1,"one, two', 'three",x', "4,5,z"], None),
    ],
)
def test_rows_inside_of_a_quoted_value_are_told(
    make_csv: MakeCsv, lines: list[str], inside: str | None
) -> None:
    for newline in "\n", "\r\n":
        path = make_csv(*lines)
        path.write_text("\n".join(lines) + "\n", newline=newline)
        warning = f"a quoted value in the row from line 2 of rows.csv holds {inside}: "
        _, scan = scanned(path)
        assert len(scan.entries) == 2
        assert scan.warnings == ([warning + "close its quote if these are rows"] if inside else [])


def test_several_quoted_values_with_rows_are_counted(make_csv: MakeCsv) -> None:
    _, scan = scanned(make_csv("a,y", "1,x", '2,"x', '3,z"', '4,"x', '5,z"'))
    assert scan.warnings[0].startswith("a quoted value in the row from line 3 of rows.csv")
    assert "looks like a row, as do 1 more: " in scan.warnings[0]


@pytest.mark.parametrize("delimiter", [",", ";"])
def test_lines_may_end_with_carriage_returns(make_csv: MakeCsv, delimiter: str) -> None:
    path = make_csv("")
    path.write_bytes(b"a,y\r1,x\r2,z\r".replace(b",", delimiter.encode()))
    source, scan = scanned(path)
    assert [column.name for column in scan.columns] == ["a", "y"]
    assert [source.read(entry).features["column/a"] for entry in scan.entries] == [1, 2]


def test_a_carriage_return_in_the_header_ends_it(make_csv: MakeCsv) -> None:
    path = make_csv("")
    path.write_bytes(b"a\r,b,y\n1,2,x\n3,4,z\n")
    with pytest.raises(DataError, match=r"has no column 'y': .* the columns are a$"):
        scanned(path)


@pytest.mark.parametrize("index", [range(30), range(7, 37), range(90, 30, -2)])
def test_an_index_without_a_name_is_left_out(make_csv: MakeCsv, index: range) -> None:
    path = make_csv(",a,y", *(f"{n},{'x' if i == 29 else i},{i % 2}" for i, n in enumerate(index)))
    source, scan = scanned(path)
    assert [column.name for column in scan.columns] == ["a", "y"]
    assert scan.notes == ["row id: the first column has no name and numbers the rows; dropped"]
    assert source.read(scan.entries[3]).features == {"column/a": 3.0}
    assert reasons(scan) == [("rows.csv#30", "'x' is not a finite number in column 'a' in line 31")]


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
    assert role(make_csv("a,empty,y", "1,,x", "2,NA,z"), "empty").note == "no values"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            ["a,b", "1,2"],
            r"has no column 'y': name the label column with --label; the columns are a, b",
        ),
        (["a,a,y", "1,2,x"], r"has 2 columns named 'a'"),
        (["a,,y", "1,2,x"], r"column 2 of .* has no name"),
        (["a,y,,", "1,x,,"], r"columns 3, 4 of .* have no name: name them in the first line"),
        ([",a,y", "1,2,x", "1,2,z"], r"column 1 of .* has no name: name it"),
        ([",a,y", "u,2,x", "v,2,z"], r"column 1 of .* has no name: name it"),
        (["sep=;", "a;y", "1;x", "2;z"], r"the first line of .* is 'sep=;', as Excel writes it"),
        (["sep=,", "a,y", "1,x", "2,z"], r"the first line of .* is 'sep=,', as Excel writes it"),
        (["", ""], r"is empty"),
        (["a,y"], r"has no rows"),
        (["y", "x", "z"], r"has no feature columns besides the label 'y'"),
        (["a,y", "1,x", "2,x"], r"column 'y' .* needs at least two labels, found only 'x'"),
        (["a,y", "1,x", "2,"], r"rows\.csv#2: no label in column 'y' in line 3"),
        (["a,y", "1,x", "", "2"], r"rows\.csv line 4: expected 2 values, got 1"),
        (["a,y", "1,x", '2,"x', "2,z"], r"starts in line 3 of .*: a quote is not closed"),
        (["a,y", '1,"x', "2,z", '3,"x"'], r"starts in line 2 of .*: a quote is not closed"),
        (["a,y", "1,x", f'2,"{"x" * 3_000_000}"'], r"line 3 of .*more than 1,048,576 characters"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(
    make_csv: MakeCsv, lines: list[str], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        scanned(make_csv(*lines))


def test_several_label_columns_are_to_be_one(make_csv: MakeCsv) -> None:
    path = make_csv("x,cat,dog", "1,0,1", "2,1,0")
    for label in ("cat,dog", "cat,cow"):
        with pytest.raises(DataError) as caught:
            scanned(path, label=label)
        assert ("make one column of them" in str(caught.value.hint)) == (label == "cat,dog")


def test_a_file_that_is_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "latin.csv"
    path.write_bytes("a,y\nniño,x\nniña,z\n".encode("latin-1"))
    _, scan = scanned(path, columns={"a": "categorical"})
    (warning,) = scan.warnings
    assert "was read as Windows-1252: 'niño,x' in line 2: give --encoding" in warning
    source, scan = scanned(path, columns={"a": "categorical"}, encoding="latin-1")
    assert not scan.warnings
    assert [source.read(entry).features["column/a"] for entry in scan.entries] == ["niño", "niña"]
    with pytest.raises(DataError, match="is not utf-8: line 2 has the byte 0xf1: give another"):
        scanned(path, encoding="utf-8")
    with pytest.raises(DataError, match="is not utf-16: line 1 has the byte 0x61: give another"):
        scanned(path, encoding="utf-16")
    with pytest.raises(SpecError, match="unknown encoding 'base64'"):
        scanned(path, encoding="base64")
    with pytest.raises(SpecError, match="unknown encoding 'latin-99'"):
        scanned(path, encoding="latin-99")
    path.write_bytes(b"a,y\n1,\x81x\n")
    with pytest.raises(DataError, match="is not UTF-8: line 2 has the byte 0x81: name its enc"):
        scanned(path)


def test_no_label_was_given(make_csv: MakeCsv) -> None:
    with pytest.raises(SpecError, match="name it with --label; the columns are a, y"):
        TableSource(Location(make_csv("a,y", "1,x"))).scan()


def test_a_type_for_a_column_that_is_not_there(make_csv: MakeCsv) -> None:
    with pytest.raises(SpecError, match="has no column 'b'"):
        scanned(make_csv("a,y", "1,x", "2,z"), columns={"b": "numeric"})


def test_a_word_in_a_column_that_should_be_numeric(make_csv: MakeCsv) -> None:
    path = make_csv("a,y", "1,x", "", "two,z", "3,z")
    _, scan = scanned(path, columns={"a": "numeric"})
    assert reasons(scan) == [("rows.csv#2", "'two' is not a finite number in column 'a' in line 4")]
    with pytest.raises(DataError, match=r"column .a. of .* has no finite numbers"):
        scanned(make_csv("a,y", "one,x", "two,z"), columns={"a": "numeric"})


def test_bad_rows_are_rejected(make_csv: MakeCsv) -> None:
    _, scan = scanned(make_csv("a,y", "1,x", "2,z,3", "3,", "4,z"))
    assert [entry.label for entry in scan.entries] == ["x", "z"]
    assert reasons(scan) == [
        ("rows.csv line 3", "expected 2 values, got 3"),
        ("rows.csv#2", "no label in column 'y' in line 4"),
    ]


def test_rows_that_are_all_wider_than_the_header_are_told(make_csv: MakeCsv) -> None:
    with pytest.raises(DataError, match=r"has no usable rows: rows\.csv line 2: expected 2 values"):
        scanned(make_csv("a,y", "1,2,x", "3,4,y"))

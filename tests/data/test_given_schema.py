from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st

from tests.data.conftest import MakeCsv, MakeImages
from timonel.data.conversion import convert
from timonel.data.given_schema import GivenSchema, read_schema, schema_of
from timonel.data.schema import CategoricalColumn, TableSchema
from timonel.data.summary import summarise
from timonel.errors import DataError, InputError, NotFoundError, SpecError
from timonel.storage import Workspace

NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1)
COLUMNS = st.dictionaries(
    NAMES,
    st.sampled_from(["number", "text", "drop"])
    | st.builds(
        lambda words: {"type": "category", "vocabulary": words},
        st.lists(NAMES, unique=True, min_size=1),
    ),
)


@given(st.lists(NAMES, unique=True), COLUMNS)
def test_a_schema_survives_its_text(labels: list[str], columns: dict[str, Any]) -> None:
    schema = read_schema({"label": "y", "labels": labels, "columns": columns})
    assert schema.labels == tuple(labels)
    assert list(schema.columns) == list(columns)
    assert GivenSchema.model_validate_json(schema.model_dump_json()) == schema
    assert read_schema(yaml.safe_load(schema.to_yaml())) == schema


@given(NAMES, st.sampled_from(["number", {"type": "category", "vocabulary": ["a", "b"]}]))
def test_a_reason_does_not_change_what_is_read(name: str, column: Any) -> None:
    noted = {"note": "a: 'b' # c", **({"type": column} if isinstance(column, str) else column)}
    schema = read_schema({"columns": {f"{name}\n{name}": noted, name: noted}})
    assert schema.to_yaml().count("# a: 'b' # c\n") == 2
    assert read_schema(yaml.safe_load(schema.to_yaml())).options() == schema.options()


def test_the_schema_of_a_source_gives_reasons(make_csv: MakeCsv) -> None:
    rows = [f"{i if i % 4 else ''},{'xyz'[i % 3]},n{i},{i},{i % 2}" for i in range(40)]
    schema = schema_of(make_csv("a,b,c,d,y", *rows), label="y", columns={"d": "text"})
    assert {name: column.note for name, column in schema.columns.items()} == {
        "a": "numbers in all 30 values, 10 missing",
        "b": "3 distinct words in 40 values",
        "c": "identifiers or free text: 40 different in 40 values: keep it with --columns c=text, "
        "or =category",
        "d": "as given",
    }
    assert "  a: number    # numbers in all 30 values, 10 missing\n" in schema.to_yaml()
    assert read_schema(json.loads(schema.model_dump_json())) == schema


def test_a_schema_is_read_from_yaml_and_json(tmp_path: Path) -> None:
    text = 'label: y\nlabels: [0, "1", no one]\ncolumns: {a: float, b: {type: string}}\n'
    (tmp_path / "s.yaml").write_text(text)
    schema = read_schema(tmp_path / "s.yaml")
    assert schema.labels == ("0", "1", "no one")
    assert {name: column.type for name, column in schema.columns.items()} == {
        "a": "numeric",
        "b": "categorical",
    }
    (tmp_path / "s.json").write_text(schema.model_dump_json())
    assert read_schema(tmp_path / "s.json") == schema
    (tmp_path / "again.yaml").write_text(schema.to_yaml())
    assert read_schema(str(tmp_path / "again.yaml")) == schema


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("labels: [yes, no]", r"labels\.0: Input should be a valid string"),
        ("labels: [a, a]", "'a' is listed twice"),
        ("labels: abc", "labels: Input should be a valid tuple"),
        ("labels: 3", "labels: Input should be a valid tuple"),
        ("columns: {a: word}", r"columns\.a\.type: unknown column type 'word'"),
        (
            "columns: {a: {type: date, vocabulary: [x]}}",
            "only categories and texts have",
        ),
        ("colums: {a: text}", "colums: Extra inputs"),
        ("task: regression\nlabels: [a]", "a regression has no labels"),
        ("- a", "Input should be"),
        ("a: [", r"is neither YAML nor JSON \(line 1, column 5\): expected the node content"),
        ("columns:\n  a: text\n  a: date", r"\(line 3, column 3\): the key 'a' is repeated"),
    ],
)
def test_a_wrong_schema_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(text)
    with pytest.raises(SpecError, match=message) as caught:
        read_schema(path)
    assert str(path) in caught.value.message
    assert "\n" not in str(caught.value)


def test_no_schema(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no schema or dataset at"):
        read_schema(tmp_path / "none.yaml")


def test_the_inferred_schema_gives_the_same_dataset(
    make_csv: MakeCsv, tmp_path: Path, workspace: Workspace
) -> None:
    path = make_csv()
    schema = schema_of(path, label="good")
    assert schema.labels == ("no", "yes")
    inferred = convert(path, tmp_path / "inferred", label="good", workspace=workspace)
    given = convert(path, tmp_path / "given", schema=schema, workspace=workspace)
    assert given.digest == inferred.digest
    kept = convert(path, tmp_path / "kept", schema=tmp_path / "inferred", workspace=workspace)
    assert kept.digest == inferred.digest
    of_dataset = schema_of(inferred.uri)
    assert of_dataset.columns["colour"].vocabulary == ("blue", "red")
    assert of_dataset.labels == schema.labels


def test_labels_and_categories_keep_their_numbers(
    make_csv: MakeCsv, tmp_path: Path, workspace: Workspace
) -> None:
    first = make_csv("a,y", *(f"w{i % 2 + 1},{'bc'[i % 2]}" for i in range(40)))
    old = convert(first, tmp_path / "old", label="y", workspace=workspace)
    second = make_csv("a,y", *(f"w{i % 2},{'bc'[i % 2]}" for i in range(40)), name="b.csv")
    new = convert(second, tmp_path / "new", schema=old.uri, workspace=workspace)
    assert new.labels == old.labels == ("b", "c")
    assert isinstance(new.manifest.record_schema, TableSchema)
    (column,) = new.manifest.record_schema.columns
    assert isinstance(column, CategoricalColumn)
    assert column.vocabulary == ("w1", "w2")
    warning, _ = summarise(new).warnings
    assert "column a: 1 word is not in the vocabulary of the schema, such as 'w0'" in warning


def test_labels_may_be_missing_in_the_data(
    make_images: MakeImages, tmp_path: Path, workspace: Workspace
) -> None:
    source = make_images()
    schema = {"labels": ["zebra", "dog", "cat"]}
    dataset = convert(source, tmp_path / "set", schema=schema, workspace=workspace)
    assert dataset.labels == ("zebra", "dog", "cat")
    example = next(dataset.examples("train"))
    assert dataset.labels[example["label"]] == example["key"].split("/")[0]
    assert "label 'zebra' has no training records" in summarise(dataset).warnings


def test_what_contradicts_the_schema_is_an_error(
    make_csv: MakeCsv, tmp_path: Path, workspace: Workspace
) -> None:
    path = make_csv("a,b,y", *(f"{i},w,{'no' if i % 2 else 'yes'}" for i in range(20)))
    out = tmp_path / "set"
    cases: list[tuple[dict[str, Any], str]] = [
        (
            {"label": "y", "labels": ["yes"], "columns": {"a": "number", "b": "text"}},
            r"label 'no' of rows.csv#10 is not in the schema",
        ),
        ({"label": "y", "columns": {"a": "number"}}, "column 'b' of .* is not in the schema"),
        (
            {"label": "y", "columns": {"a": "number", "b": "text", "c": "text"}},
            "has no column 'c'",
        ),
        (
            {"label": "y", "columns": {"a": "number", "b": "number"}},
            "column 'b' of .* has no finite numbers",
        ),
    ]
    for schema, message in cases:
        with pytest.raises((DataError, SpecError), match=message):
            convert(path, out, schema=schema, workspace=workspace)
        assert not out.exists()
    with pytest.raises(SpecError, match="a schema and label exclude each other"):
        convert(path, out, schema=cases[0][0], label="y", workspace=workspace)


def test_a_schema_without_a_label_column_takes_one(
    make_csv: MakeCsv, make_images: MakeImages, tmp_path: Path, workspace: Workspace
) -> None:
    convert(make_images(), tmp_path / "images", workspace=workspace)
    path = make_csv("a,y", *(f"{i * 3 % 7},{'dog' if i % 2 else 'cat'}" for i in range(20)))
    schema = tmp_path / "images"
    with pytest.raises(SpecError, match=r"the label column of .* is not known"):
        convert(path, tmp_path / "set", schema=schema, workspace=workspace)
    dataset = convert(path, tmp_path / "set", schema=schema, label="y", workspace=workspace)
    assert dataset.labels == ("cat", "dog")


def test_one_of_several_labels_outside_the_schema(
    make_csv: MakeCsv, tmp_path: Path, workspace: Workspace
) -> None:
    path = make_csv("a,y", *(f"{i},{'p|q' if i % 2 else 'p'}" for i in range(20)), "20,p|x%|q")
    schema = {"label": "y", "labels": ["q", "p"], "task": "multilabel"}
    with pytest.raises(DataError, match=r"label 'x%' of rows.csv#21 is not in the schema"):
        convert(path, tmp_path / "set", schema=schema, workspace=workspace)


def test_the_schema_of_a_table_in_memory(tmp_path: Path, workspace: Workspace) -> None:
    table = pa.table({"v": [[1.0, 2.0]] * 20, "n": list(range(0, 40, 2)), "y": ["a", "b"] * 10})
    schema = schema_of(table, label="y")
    assert {name: column.type for name, column in schema.columns.items()} == {
        "v": "numbers",
        "n": "numeric",
    }
    assert convert(table, tmp_path / "set", schema=schema, workspace=workspace).count() == 20


def test_a_folder_is_no_schema(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a regular file"):
        read_schema(tmp_path)


def test_a_schema_that_is_a_pipe_or_nested_too_deeply(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(SpecError, match=r"pipe\.yaml is not a regular file"):
        read_schema(tmp_path / "pipe.yaml")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    with pytest.raises(SpecError, match="nested too deeply"):
        read_schema(tmp_path / "deep.json")

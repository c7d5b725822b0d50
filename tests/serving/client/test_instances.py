from __future__ import annotations

import base64
import datetime as dt
import json
from decimal import Decimal

import numpy as np
import pytest

from timonel.errors import DataError, InputError, NotFoundError
from timonel.serving.client.connection import ClientSignature, Input, InstanceKind
from timonel.serving.client.instances import check_files, instances


def wanted(*inputs):
    return ClientSignature("m", 1, tuple(Input(*each) for each in inputs), ("y",))


IMAGE = wanted(("image_bytes", "DT_STRING", (-1,)))
TABLE = wanted(("age", "DT_FLOAT", (-1,)), ("name", "DT_STRING", (-1,)), ("n", "DT_INT64", (-1, 1)))
TENSOR = wanted(("x", "DT_FLOAT", (-1, 2)))
NUMBER = wanted(("x", "DT_FLOAT", (-1,)))
TEXT = wanted(("text", "DT_STRING", (-1,)))
ROW = {"age": 1.5, "name": "Ada", "n": 2}
SENT = {"age": 1.5, "name": "Ada", "n": [2]}


def values(inputs, model):
    return [instance.value for instance in instances(inputs, model)]


def test_kinds():
    assert [each.kind for each in (IMAGE, TABLE, TENSOR)] == [
        InstanceKind.IMAGE,
        InstanceKind.ROW,
        InstanceKind.TENSOR,
    ]
    assert TEXT.kind is wanted(("text", "DT_STRING", (-1, 1))).kind is InstanceKind.ROW
    assert wanted(("x", "DT_FLOAT", None)).kind is InstanceKind.TENSOR


def test_images(png, tmp_path):
    file = tmp_path / "a.png"
    file.write_bytes(png())
    sent = {"b64": base64.b64encode(png()).decode()}
    assert values(file, IMAGE) == values(str(file), IMAGE) == values(png(), IMAGE) == [sent]
    assert [i.source for i in instances([file, png()], IMAGE)] == [str(file), "bytes"]


def test_webp_images():
    content = b"RIFF\x04\0\0\0WEBPVP8 "
    assert values(content, IMAGE) == [{"b64": base64.b64encode(content).decode()}]
    with pytest.raises(DataError, match="bytes is not a PNG"):
        instances(b"RIFF\x04\0\0\0WAVEfmt ", IMAGE)


def test_rows_come_from_a_data_frame():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame([ROW, ROW]).assign(other="x")
    assert values(frame, TABLE) == [SENT, SENT]
    assert values(frame, TABLE) == values([frame], TABLE)


def test_a_missing_number_is_sent_as_null():
    assert values({**ROW, "age": None}, TABLE) == [{**SENT, "age": None}]
    assert values(json.dumps({**ROW, "age": None}), TABLE) == [{**SENT, "age": None}]


def test_decimals_are_numbers_and_dates_are_not():
    assert values({**ROW, "age": Decimal("1.50")}, TABLE) == [{**SENT, "age": 1.5}]
    with pytest.raises(InputError, match=r"expected a number in column age, got datetime\.date"):
        values({**ROW, "age": dt.date(2024, 1, 31)}, TABLE)


def test_rows_come_from_dicts_json_and_csv(tmp_path):
    table = tmp_path / "t.csv"
    table.write_text("\ufeffname,other,age,n\nAda,x,1.5,2\n")
    text = tmp_path / "t.json"
    text.write_text(json.dumps([ROW, ROW]))
    request = tmp_path / "r.json"
    request.write_text(json.dumps({"instances": [ROW]}))
    lines = tmp_path / "t.jsonl"
    lines.write_text(f"{json.dumps(ROW)}\n{json.dumps(ROW)}\n")
    assert values(ROW, TABLE) == values(table, TABLE) == values(str(request), TABLE) == [SENT]
    assert (
        values(json.dumps(ROW), TABLE) == values({**ROW, "age": np.float32(1.5)}, TABLE) == [SENT]
    )
    assert values([ROW, ROW], TABLE) == values(text, TABLE) == values(lines, TABLE) == [SENT, SENT]
    assert [i.source for i in instances(table, TABLE)] == [f"{table}, line 2"]
    assert [i.source for i in instances(ROW, TABLE)] == ["row"]
    several = (json.dumps(ROW), ROW, json.dumps([ROW, ROW]))
    assert [i.source for i in instances(several, TABLE)] == ["row 1", "row 2", "row 3", "row 4"]


def test_csv_text_becomes_what_the_column_is(tmp_path):
    model = wanted(("flag", "DT_BOOL", (-1,)), ("n", "DT_INT32", (-1,)), ("s", "DT_STRING", (-1,)))
    table = tmp_path / "t.csv"
    table.write_text("flag,n,s\nTrue,7,007\n0,-1,\n")
    assert values(table, model) == [
        {"flag": True, "n": 7, "s": "007"},
        {"flag": False, "n": -1, "s": ""},
    ]


def test_the_unnamed_index_of_a_csv_is_not_sent(tmp_path):
    table = tmp_path / "t.csv"
    table.write_text(",name,age,n\n0,Ada,1.5,2\n")
    assert values(table, TABLE) == [SENT]


def test_cells_that_a_conversion_takes_for_missing_are_missing_here(tmp_path):
    model = wanted(("age", "DT_FLOAT", (-1,)), ("n", "DT_DOUBLE", (-1, 1)))
    table = tmp_path / "t.csv"
    words = ["", " NA ", "?", "null", "n.a. yet", "inf", "1e39", "1_000"]
    table.write_text("age,n\n" + "".join(f"{word},{i}\n" for i, word in enumerate(words)))
    told = []
    found = instances(table, model, told.append)
    assert all(np.isnan(each.value["age"]) for each in found)
    assert [each.value["n"] for each in found] == [[float(i)] for i in range(len(words))]
    assert told == [
        (
            f"{table}: 8 cells without a number treated as missing "
            "(age: 8, such as 'n.a. yet' in line 6)"
        )
    ]


@pytest.mark.parametrize(
    ("name", "separator", "note"),
    [
        ("t.csv", ";", "semicolons"),
        ("t.csv", "\t", "tabs"),
        ("t.csv", "|", "bars"),
        ("t.tsv", "\t", None),
    ],
)
def test_values_may_be_separated_by_other_than_commas(tmp_path, name, separator, note):
    table = tmp_path / name
    table.write_text("\n".join(separator.join(row) for row in (ROW, ["1.5", "Ada", "2"])))
    told = []
    assert [each.value for each in instances(str(table), TABLE, told.append)] == [SENT]
    assert told == ([f"{table}: values are separated by {note}"] if note else [])


def test_a_value_of_several_lines_is_one_value(tmp_path):
    table = tmp_path / "t.csv"
    table.write_text('age,name,n\n\n1.5,"A\nda",2\n1.5,Ada,2\n')
    found = instances(table, TABLE)
    assert [each.value["name"] for each in found] == ["A\nda", "Ada"]
    assert [each.source for each in found] == [f"{table}, line 4", f"{table}, line 5"]


def test_a_model_with_one_input_takes_bare_values(tmp_path):
    rows = [{"x": 1}, {"x": 2}, {"x": 5}]
    for inputs in ("[1, 2, 5]", '{"instances": [1, 2, 5]}', [1, 2, 5], np.array([1, 2, 5])):
        assert values(inputs, NUMBER) == rows
    assert values("5", NUMBER) == [{"x": 5.0}]
    long = "great " * 500
    sent = [{"text": "the film was great"}, {"text": long}]
    for inputs in (json.dumps([sent[0]["text"], long]), [sent[0]["text"], long]):
        assert values(inputs, TEXT) == sent
    assert values("the film was great", TEXT) == sent[:1]
    assert values(long, TEXT) == sent[1:]
    column = wanted(("text", "DT_STRING", (-1, 1)))
    for inputs in (["a", "b"], [["a"], ["b"]], np.array([["a"], ["b"]])):
        assert values(inputs, column) == [{"text": ["a"]}, {"text": ["b"]}]
    (tmp_path / "a.txt").touch()
    with pytest.raises(InputError, match=r"got .*a\.txt"):
        values(str(tmp_path / "a.txt"), TEXT)


def test_the_rows_of_a_csv_are_vectors(tmp_path):
    table = tmp_path / "t.csv"
    table.write_text(",a,b\n0,1,2\n1,3,4.5\n")
    assert values(table, TENSOR) == values(str(table), TENSOR) == [[1, 2], [3, 4.5]]
    table.write_text("1,2\n3,4\n")
    with pytest.raises(DataError, match=r"t\.csv is not a header: 1,2"):
        values(table, TENSOR)


def test_tensors(tmp_path):
    file = tmp_path / "x.json"
    file.write_text("[[1, 2], [3, 4]]")
    assert values([[1, 2]], TENSOR) == values([1, 2], TENSOR) == [[1, 2]]
    assert values(np.array([1.0, 2.0]), TENSOR) == values("[1.0, 2.0]", TENSOR) == [[1, 2]]
    assert values(file, TENSOR) == values(str(file), TENSOR) == [[1, 2], [3, 4]]
    assert values([np.array([1, 2]), np.array([3, 4])], TENSOR) == [[1, 2], [3, 4]]
    with pytest.raises(InputError, match=r"expected arrays of 1 dimensions, .*got 3 dimensions"):
        values([[[1, 2]]], TENSOR)


def test_files_of_numpy(tmp_path):
    file = tmp_path / "x.npy"
    np.save(file, np.array([[1, 2], [3, 4]]))
    assert values(file, TENSOR) == values(str(file), TENSOR) == [[1, 2], [3, 4]]
    np.save(file, np.array([1.5, 2.5]))
    assert values(file, NUMBER) == [{"x": 1.5}, {"x": 2.5}]
    rows = tmp_path / "rows.npz"
    np.savez(rows, age=np.array([1.5]), name=np.array(["Ada"]), n=np.array([2]))
    assert values(rows, TABLE) == [SENT]
    with pytest.raises(NotFoundError, match=r"no file at .*y\.npy"):
        values(tmp_path / "y.npy", TENSOR)
    np.save(file, np.array([{"a": 1}]), allow_pickle=True)
    with pytest.raises(DataError, match=r"x\.npy is not a NumPy array"):
        values(file, TENSOR)
    file.write_bytes(b"")
    with pytest.raises(DataError, match=r"x\.npy is not a NumPy array"):
        values(file, TENSOR)


def test_what_is_not_there_or_no_image(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("no image")
    with pytest.raises(NotFoundError, match=r"no file at .*nope\.png"):
        values(tmp_path / "nope.png", IMAGE)
    with pytest.raises(DataError, match=r"a\.txt is not a PNG, JPEG, GIF, BMP or WebP image"):
        values(file, IMAGE)
    with pytest.raises(InputError, match="cannot read"):
        values(tmp_path, IMAGE)
    with pytest.raises(InputError, match="nothing to predict"):
        values([], IMAGE)
    with pytest.raises(NotFoundError):
        values("nope.csv", TABLE)


@pytest.mark.parametrize(
    ("inputs", "model", "message"),
    [
        ({"age": 1}, TABLE, "wrong columns (row): missing name, n: the model takes age, name, n"),
        ({**ROW, "x": 1}, TABLE, "wrong columns (row): unknown x: the model takes age, name, n"),
        ({**ROW, "age": "old"}, TABLE, "expected a number in column age, got 'old' (row)"),
        ({**ROW, "age": 1e39}, TABLE, "column age: '1e+39' is too large for a 32-bit float (row)"),
        ('{"age": 1e400, "name": "Ada", "n": 2}', TABLE, "column age: 'inf' is not a finite"),
        ({**ROW, "n": None}, TABLE, "expected a number in column n, got None (row)"),
        ({**ROW, "n": "1.5"}, TABLE, "expected a number in column n, got '1.5' (row)"),
        (7, TABLE, "m takes a row of named values, got int: give a CSV, JSON or dicts"),
        (ROW, IMAGE, "m takes image files, got dict: give their paths, or their content as bytes"),
        (np.zeros((8, 8)), IMAGE, "m takes image files, got an array: give their paths"),
        ("I love it", TABLE, "m takes a row of named values, got 'I love it': give a CSV, JSON"),
        ("a", TENSOR, "m takes a tensor, got 'a': give a CSV, an array or nested lists"),
        ("nope.csv", TENSOR, "no file at nope.csv"),
        ("high", NUMBER, "expected a number in column x, got 'high' (row)"),
        (object(), NUMBER, "m takes a row of named values, got object"),
        ([ROW], TENSOR, "m takes a tensor, got list"),
        (
            '[1, {"age": 1}]',
            TABLE,
            'JSON objects: use rows such as {"age": ..., "name": ..., "n": ...}',
        ),
    ],
)
def test_what_the_model_does_not_take(inputs, model, message):
    with pytest.raises(InputError) as caught:
        values(inputs, model)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.csv",
            b"age,name,n\n1,Ada\n",
            r"a\.csv line 2: expected 3 values, got 2: repair or remove it",
        ),
        ("a.csv", b"age,name,n\n1,Ada,2,3\n", r"a\.csv line 2: expected 3 values, got 4"),
        ("a.csv", b"age,name,n\n\x81,Ada,2\n", "is not UTF-8: line 2 has the byte 0x81"),
        ("a.csv", b'age,name,n\n1,"Ada,2\n2,Bo,3\n', "line 2 of .*: a quote is not closed"),
        ("a.csv", b"age,name,age\n", "has 2 columns named 'age'"),
        ("a.json", b"\xff", "is not UTF-8 text"),
        ("a.json", b"{", "is not valid JSON"),
    ],
)
def test_files_that_cannot_be_read(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        values(tmp_path / name, TABLE)


def test_an_image_is_no_table(png, tmp_path):
    (tmp_path / "a.png").write_bytes(png())
    with pytest.raises(InputError, match="m takes a row of named values, got"):
        values(tmp_path / "a.png", TABLE)


def test_files_are_looked_for_before_a_model_is_loaded(tmp_path):
    there = tmp_path / "a.png"
    there.touch()
    check_files([there, str(there), b"bytes", "a text to classify", '{"a": 1}', {"a": 1}, 3.0])
    for missing in (tmp_path / "text", str(tmp_path / "b.png"), "rows.csv"):
        with pytest.raises(NotFoundError, match="no file at"):
            check_files([there, missing])


def test_values_of_categories_become_the_words_of_a_conversion():
    pandas = pytest.importorskip("pandas")
    model = wanted(("c", "DT_STRING", (-1,)))
    sent = [each["c"] for each in values([{"c": v} for v in (True, 2.0, 0.1, None, " a ")], model)]
    assert sent == ["true", "2", "0.1", "", " a "]
    for column, words in (
        (pandas.Series([True, False]), ["true", "false"]),
        (pandas.Series([0.1, 2], dtype="float32"), ["0.1", "2"]),
        (pandas.Series(["a", None], dtype="string"), ["a", ""]),
        (pandas.Series([1, None], dtype="Int64"), ["1", ""]),
        (pandas.Series(["b", "a"], dtype="category"), ["b", "a"]),
        (pandas.Series(pandas.to_datetime(["2024-01-31", None])), ["2024-01-31 00:00:00", ""]),
        (pandas.Series(["x", None, True], dtype=object), ["x", "", "true"]),
    ):
        assert [each["c"] for each in values(pandas.DataFrame({"c": column}), model)] == words

"""Tables of all formats: Parquet, JSON lines, CSV in other encodings, and several files."""

from __future__ import annotations

import bz2
import datetime as dt
import gzip
import json
import lzma
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contracts.sources import SourceContract
from timonel.data.examples import encode_example
from timonel.data.records import frame
from timonel.data.schema import ColumnType
from timonel.data.sources import Entry, Scan, Source, SourceOptions, choose_source
from timonel.data.sources.table import TableSource
from timonel.data.sources.tablefile import MemoryTable
from timonel.errors import DataError, InputError, SpecError
from timonel.storage.location import Location

ROWS = 20


def scanned(location: Path | Location | str, **options: object) -> tuple[Source, Scan, list[Entry]]:
    chosen = SourceOptions.model_validate({"label": "y", **options})
    place = location if isinstance(location, Location) else Location(location)
    source = choose_source(place, chosen)(place, chosen)
    scan = source.scan()
    return source, scan, list(scan.entries)


def values(source: Source, entries: list[Entry], column: str) -> list[object]:
    return [source.read(entry).features[f"column/{column}"] for entry in entries]


def rejected(scan: Scan) -> list[tuple[str, str]]:
    return [(each.key, each.reason) for each in scan.rejected]


def roles(scan: Scan) -> dict[str, tuple[str, str]]:
    return {column.name: (column.role, column.note) for column in scan.columns}


def rows(count: int = ROWS) -> pa.Table:
    return pa.table(
        {
            "x": [index / 7 for index in range(count)],
            "c": ["red", "blue"] * (count // 2),
            "y": [0, 1] * (count // 2),
        }
    )


def write_records(path: Path, examples: list[dict[str, object]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    payloads = [b"".join(frame(encode_example(each))) for each in examples]  # type: ignore[arg-type]
    path.write_bytes(b"".join(payloads))
    return path


def write_lines(path: Path, *objects: object) -> Path:
    path.write_text("".join(f"{json.dumps(each)}\n" for each in objects))
    return path


class TestParquet(SourceContract):
    @pytest.fixture
    def source(self, tmp_path: Path) -> Source:
        pq.write_table(rows(), tmp_path / "rows.parquet")
        return TableSource(Location(tmp_path / "rows.parquet"), SourceOptions(label="y"))


class TestJsonLines(SourceContract):
    @pytest.fixture
    def source(self, tmp_path: Path) -> Source:
        path = write_lines(tmp_path / "rows.jsonl", *rows().to_pylist())
        return TableSource(Location(path), SourceOptions(label="y"))


class TestRecords(SourceContract):
    @pytest.fixture
    def source(self, tmp_path: Path) -> Source:
        path = write_records(tmp_path / "rows.tfrecord", rows().to_pylist())
        return TableSource(Location(path), SourceOptions(label="y"))


class TestMemory(SourceContract):
    @pytest.fixture
    def source(self) -> Source:
        return TableSource(MemoryTable(rows()), SourceOptions(label="y"))

    def test_it_recognises_its_own_place(self, source: Source) -> None:
        assert choose_source(source.location, source.options) is TableSource


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(-1e38, 1e38), min_size=4, max_size=20))
def test_floats_of_a_typed_table_do_not_change(numbers: list[float]) -> None:
    table = pa.table({"x": numbers, "y": [index % 2 for index in range(len(numbers))]})
    source, _, entries = scanned(MemoryTable(table), columns={"x": "numeric"})
    assert values(source, entries, "x") == numbers


def test_columns_keep_their_types(tmp_path: Path) -> None:
    table = pa.table(
        {
            "small": pa.array([index * 2 for index in range(ROWS)], pa.int8()),
            "half": pa.array(np.arange(ROWS, dtype=np.float16)),
            "flag": pa.array([True, None] * (ROWS // 2)),
            "word": pa.array(["a", None] * (ROWS // 2)).dictionary_encode(),
            "text": pa.array(["1", "2"] * (ROWS // 2), pa.large_string()),
            "missing": pa.array([None, math.nan] * (ROWS // 2), pa.float64()),
            "large": pa.array([2**53 + 1, 5] * (ROWS // 2)),
            "day": pa.array([dt.date(2024, 1, 1)] * ROWS),
            "items": pa.array([[1, 2]] * ROWS),
            "nothing": pa.nulls(ROWS),
            "y": pa.array([True, False] * (ROWS // 2)),
        }
    )
    pq.write_table(table, tmp_path / "rows.parquet")
    source, scan, entries = scanned(tmp_path / "rows.parquet")
    assert roles(scan) == {
        "small": ("numeric", ""),
        "half": (
            "drop",
            "row id: a different whole number in each row: keep it with --columns half=number",
        ),
        "flag": ("numeric", ""),
        "word": ("categorical", ""),
        "text": (
            "categorical",
            "numbers of the type text: read them as numbers with --columns text=number",
        ),
        "missing": ("drop", "no values"),
        "large": (
            "numeric",
            (
                f"integers are rounded to 32-bit floats, such as {2**53 + 1} to {2**53}: "
                "harmless unless they are identifiers; keep those with --columns large=category, "
                "or =text"
            ),
        ),
        "day": ("date", "from the type date32[day]"),
        "items": ("numbers", "from the type list<element: int64>"),
        "nothing": ("drop", "no values"),
        "y": ("label", "classification"),
    }
    first, second = (source.read(entry).features for entry in entries[:2])
    assert (first["column/flag"], first["column/word"], first["column/text"]) == (1, "a", "1")
    assert math.isnan(second["column/flag"])  # type: ignore[arg-type] # a number
    assert second["column/word"] == ""
    assert [entry.label for entry in entries[:2]] == ["true", "false"]


def test_large_whole_numbers_as_classes_are_not_rounded() -> None:
    labels = [2**53 + 1, 2**53 + 2] * 10
    _, _, entries = scanned(MemoryTable(pa.table({"x": rows()["x"], "y": labels})))
    assert [entry.label for entry in entries] == [str(label) for label in labels]


def test_a_missing_label_is_rejected_with_its_row(tmp_path: Path) -> None:
    table = rows().set_column(2, "y", pa.array([None, 0, 1, 0] * 5))
    pq.write_table(table, tmp_path / "rows.parquet")
    _, scan, entries = scanned(tmp_path / "rows.parquet")
    assert rejected(scan)[0] == ("rows.parquet#1", "no label in column 'y' in row 1")
    assert len(entries) == 15


def test_a_folder_or_pattern_of_files_is_one_table(tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    for name in ("a/1", "a/2"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows(4), folder / f"{name}.parquet")
    (folder / "_SUCCESS").touch()
    for location in (folder, folder / "a" / "*.parquet"):
        source, _, entries = scanned(location)
        assert [entry.key for entry in entries][3:5] == ["1.parquet#4", "2.parquet#1"]
        assert values(source, entries, "x") == [0, 1 / 7, 2 / 7, 3 / 7] * 2
    pq.write_table(rows(4).rename_columns(["z", "c", "y"]), folder / "a" / "3.parquet")
    with pytest.raises(DataError, match=r"\.parquet has a column 'x', but 3\.parquet has none"):
        scanned(folder)
    strings = rows(4).set_column(0, "x", pa.array(["a", "b", "c", "d"]))
    pq.write_table(strings, folder / "a" / "3.parquet")
    with pytest.raises(DataError, match=r"'x' has the type double in 1\.parquet, but string in 3"):
        scanned(folder)


def test_numbers_of_the_type_text_are_classes() -> None:
    table = pa.table({"x": rows()["x"], "y": ["0", "1"] * (ROWS // 2)})
    _, scan, entries = scanned(MemoryTable(table))
    assert scan.task == "classification"
    assert {entry.label for entry in entries} == {"0", "1"}


def test_names_of_files_assign_splits(tmp_path: Path) -> None:
    for split in ("train", "test"):
        pq.write_table(rows(4), tmp_path / f"{split}-0.parquet")
    _, scan, entries = scanned(tmp_path)
    assert [entry.split for entry in entries] == ["test"] * 4 + ["train"] * 4
    assert "the paths of the files assign the column split" in scan.notes
    _, _, entries = scanned(tmp_path / "train-0.parquet")
    assert {entry.split for entry in entries} == {None}


def test_names_of_folders_assign_columns(tmp_path: Path) -> None:
    for year in ("2023", "__HIVE_DEFAULT_PARTITION__"):
        path = tmp_path / f"year={year}" / "region=North%20Sea" / "0.parquet"
        path.parent.mkdir(parents=True)
        pq.write_table(rows(20), path)
    source, scan, entries = scanned(tmp_path)
    assert values(source, entries, "year") == ["2023"] * 20 + [""] * 20
    assert set(values(source, entries, "region")) == {"North Sea"}
    assert "the paths of the files assign the column year" in scan.notes
    assert len({entry.key for entry in entries}) == 40


def save_to_disk(folder: Path, table: pa.Table, **label: object) -> None:
    """Write what Dataset.save_to_disk() of Hugging Face's library writes."""
    folder.mkdir(parents=True)
    with pa.ipc.new_stream(folder / "data-00000-of-00001.arrow", table.schema) as writer:
        writer.write_table(table)
    state = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}], "_format_type": None}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text(json.dumps({"features": {"y": label}}))


def test_a_saved_dataset_of_hugging_face(tmp_path: Path) -> None:
    table = rows().set_column(2, "y", pa.array([0, 1, -1, 1] * 5))
    names = {"names": ["no", "yes"], "_type": "ClassLabel"}
    for split in ("train", "test"):
        save_to_disk(tmp_path / "saved" / split, table, **names)
    (tmp_path / "saved" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    source, scan, entries = scanned(tmp_path / "saved")
    assert [entry.split for entry in entries] == ["train"] * 15 + ["test"] * 15
    assert {entry.label for entry in entries} == {"no", "yes"}
    assert len(scan.rejected) == 10
    assert values(source, entries[:2], "x") == [0, 1 / 7]
    _, _, entries = scanned(tmp_path / "saved" / "train")
    assert {entry.split for entry in entries} == {None}
    path = tmp_path / "saved" / "train" / "data-00000-of-00001.arrow"
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(DataError, match="is not a valid Arrow file: "):
        scanned(tmp_path / "saved" / "train")
    (tmp_path / "saved" / "train" / "state.json").write_text("[")
    with pytest.raises(DataError, match=r"cannot read .*state\.json: "):
        scanned(tmp_path / "saved" / "train")


@pytest.mark.parametrize("cut", [0, 4, 100, -1])
def test_a_damaged_parquet_file(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(rows(), path)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(DataError, match=r"rows\.parquet is not a valid Parquet file: ") as error:
        scanned(path)
    assert "\n" not in str(error.value)


def test_bad_lines_of_json_are_rejected(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "rows.jsonl", *rows().to_pylist())
    path.write_text('[1]\n\n{"x": NaN, "y": 1}\n{"x": 1,\n' + path.read_text())
    _, scan, entries = scanned(path)
    assert len(entries) == ROWS
    assert rejected(scan) == [
        ("rows.jsonl line 1", "not a JSON object"),
        ("rows.jsonl line 3", "not valid JSON: NaN is not a JSON value; write null"),
        (
            "rows.jsonl line 4",
            "not valid JSON: Expecting property name enclosed in double quotes",
        ),
    ]
    array = tmp_path / "array.json"
    objects = ",\n".join(map(json.dumps, rows().to_pylist()))
    for content in (json.dumps(rows().to_pylist(), indent=1), f"[\n{objects}\n]", f"[{objects}]"):
        array.write_text(content)
        with pytest.raises(DataError, match=r"JSON objects; line 1: not valid JSON: .* one object"):
            scanned(array)
    path = write_lines(tmp_path / "twice.jsonl")
    path.write_text('{"x": 1, "x": 2, "y": 1}\n' * 3)
    with pytest.raises(DataError, match="JSON objects; line 1: not valid JSON: a name is repeated"):
        scanned(path)


def test_integers_beyond_64_bits_are_rounded_with_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    for first, warned in ((1e30, False), (2**63 - 1, False), (10**29, True)):
        path.write_text("".join(f'{{"x": {first}, "y": {n % 2}}}\n' for n in range(ROWS)))
        _, scan, _ = scanned(path)
        assert any("integers beyond 64 bits" in each for each in scan.warnings) == warned


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"x": 1e999, "y": 1}', "not valid JSON: 1e999 is too large for a number"),
        (b'{"c": "\\ud800", "y": 1}', "not valid JSON: half of a pair of surrogates"),
        (b'{"x": 1, "x": 2, "y": 1}', "not valid JSON: a name is repeated"),
        (b'\xef\xbb\xbf{"x": 1, "y": 1}', "not valid JSON: Unexpected UTF-8 BOM"),
        (b'{"x": ' + b"[" * 100_000, "not valid JSON: maximum recursion depth exceeded"),
        (b'{"x":' * 50_000, "not valid JSON: maximum recursion depth exceeded"),
    ],
)
def test_lines_that_arrow_cannot_read_are_rejected_alone(
    tmp_path: Path, line: bytes, reason: str
) -> None:
    path = write_lines(tmp_path / "rows.jsonl", *rows().to_pylist())
    path.write_bytes(path.read_bytes() + line + b"\n")
    _, scan, entries = scanned(path)
    assert len(entries) == ROWS
    ((key, found),) = rejected(scan)
    assert key == f"rows.jsonl line {ROWS + 1}"
    assert found.startswith(reason)


def test_damaged_arrow_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.arrow"
    table = pa.table({"c": [f"word {index}" for index in range(50)], "y": [0, 1] * 25})
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table)
    content = path.read_bytes()
    place = content.index(np.array([0, 6, 12, 18], np.int32).tobytes())
    changed = bytearray(content)
    changed[place + 4 : place + 8] = np.int32(1 << 30).tobytes()
    path.write_bytes(changed)
    with pytest.raises(DataError, match=r"rows\.arrow is not a valid Arrow file"):
        scanned(path)


def test_values_of_another_type_in_json(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "rows.jsonl", {"x": 1, "y": 0}, {"y": 1}, {"x": "one", "y": 1})
    with pytest.raises(DataError, match=r"expected a number in column 'x' .* got text in line 3"):
        scanned(path)


MIXED = [
    {"t": "a b", "y": 1, "n": 2},
    {"t": 1776, "y": 0, "n": 3},
    {"t": 0.1, "y": 1, "n": 4},
    {"t": True, "y": 0, "n": 9},
    {"t": None, "y": 1, "n": 1},
]


@pytest.mark.parametrize("role", ["categorical", "text"])
def test_numbers_among_words_of_json_are_words(tmp_path: Path, role: ColumnType) -> None:
    path = write_lines(tmp_path / "rows.jsonl", *MIXED)
    with pytest.raises(DataError, match=r"got a number in line 2: '1776': .* --columns t=category"):
        scanned(path)
    source, _, entries = scanned(path, columns={"t": role})
    found = values(source, entries, "t")
    texts = [each.decode() if isinstance(each, bytes) else each for each in found]
    assert texts == ["a b", "1776", "0.1", "true", ""]
    assert values(source, entries, "n") == [2, 3, 4, 9, 1]


def test_a_dropped_column_of_json_may_have_any_values(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "rows.jsonl", *MIXED, {"t": [1, {}], "y": 1, "n": 7})
    source, _, entries = scanned(path, columns={"t": "drop"})
    assert values(source, entries, "n") == [2, 3, 4, 9, 1, 7]
    with pytest.raises(DataError, match=r"got a list or an object in line 6"):
        scanned(path, columns={"t": "text"})


def test_names_that_are_missing_in_a_line_of_json(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "rows.jsonl", *({"y": i % 2, "x": i} for i in range(0, 40, 3)))
    path.write_text(path.read_text() + '{"y": 0}\n\n{"y": null, "x": 5.5}\n')
    source, scan, entries = scanned(path)
    assert math.isnan(values(source, entries, "x")[-1])  # type: ignore[arg-type] # a number
    assert rejected(scan) == [("rows.jsonl#16", "no label in column 'y' in line 17")]


CSV = "größe;farbe;y\n" + "".join(f"{i},5;rot {i};{'ja' if i % 2 else 'nö'}\n" for i in range(20))


@pytest.mark.parametrize("compress", [bytes, gzip.compress, bz2.compress, lzma.compress, None])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "cp1252"])
def test_encodings_and_compressions_are_detected(
    tmp_path: Path, encoding: str, compress: object
) -> None:
    content = CSV.encode(encoding)
    if compress is None:
        stream = pa.BufferOutputStream()
        with pa.CompressedOutputStream(stream, "zstd") as file:
            file.write(content)
        path, content = tmp_path / "rows.csv.zst", stream.getvalue().to_pybytes()
    else:
        path, content = tmp_path / "rows.csv", compress(content)  # type: ignore[operator] # called
    path.write_bytes(content)
    _, scan, entries = scanned(path, columns={"farbe": "categorical"})
    assert [column.name for column in scan.columns] == ["größe", "farbe", "y"]
    assert {entry.label for entry in entries} == {"ja", "nö"}
    assert bool(scan.warnings) == (encoding == "cp1252")


def test_a_compressed_file_that_is_cut_off(tmp_path: Path) -> None:
    for name, compress in (("a.csv.gz", gzip.compress), ("b.csv.xz", lzma.compress)):
        (tmp_path / name).write_bytes(compress(CSV.encode())[:-9])
        with pytest.raises(DataError, match=rf"cannot read .*{name}: Compressed file ended"):
            scanned(tmp_path / name)


def test_a_delimiter_and_names_may_be_given(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("".join(f"{i}.5^{'ab'[i % 2]}^{i % 2}\n" for i in range(20)))
    options = {"delimiter": "^", "column_names": ["x", "c", "y"]}
    source, _, entries = scanned(path, **options)
    assert values(source, entries[:2], "x") == [0.5, 1.5]
    path.write_text("X^c^Y\n" + path.read_text())
    assert len(scanned(path, **options)[2]) == 20
    with pytest.raises(SpecError, match="expected one character as the delimiter, got '::'"):
        scanned(path, delimiter="::")


def test_a_table_of_numbers_without_a_header(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("1.5,2,0\n2.5,1,1\n")
    with pytest.raises(DataError, match=r"first line .* not a header: 1\.5,2,0: name the columns"):
        scanned(path)


def test_records_are_described_by_their_types(tmp_path: Path) -> None:
    examples = [
        {"x": i / 2, "n": i * 3 % 7, "w": ["a", "b"][i % 2], "v": [1.0, 2.0], "y": i % 2}
        for i in range(ROWS)
    ]
    examples[3].pop("x")
    path = write_records(tmp_path / "rows.tfrecord", examples)
    source, scan, entries = scanned(path)
    assert {name: role for name, (role, _) in roles(scan).items()} == {
        "x": "numeric",
        "n": "numeric",
        "w": "categorical",
        "v": "numbers",
        "y": "label",
    }
    assert math.isnan(values(source, entries, "x")[3])  # type: ignore[arg-type] # a number
    content = bytearray(path.read_bytes())
    content[20] ^= 1
    path.write_bytes(content)
    _, scan, entries = scanned(path)
    assert rejected(scan) == [("rows.tfrecord record 1", "a wrong checksum")]
    path.write_bytes(content[:-3])
    with pytest.raises(DataError, match=r"rows\.tfrecord has a truncated record at byte"):
        scanned(path)
    path.write_bytes(b"")
    with pytest.raises(DataError, match=r"rows\.tfrecord has no records"):
        scanned(path)


def test_the_types_of_records_come_from_all_files(tmp_path: Path) -> None:
    for split, tags, size in (("train", ["p"], [1.0]), ("test", ["p", "q"], [1, 2])):
        examples = [
            {"v": size * (1 + index % 2), "y": tags, "w": b"a\xff" if split == "test" else b"a"}
            for index in range(ROWS)
        ]
        examples[0]["only in " + split] = ["x"]
        write_records(tmp_path / f"{split}.tfrecord", examples)  # type: ignore[arg-type]
    with pytest.raises(
        DataError, match=r"has a column 'only in t\w+', but t\w+\.tfrecord has none"
    ):
        scanned(tmp_path)
    given = {"only in train": "categorical", "only in test": "drop"}
    _, scan, entries = scanned(tmp_path, columns=given)
    assert "1 file without the column 'only in train', the first: test.tfrecord" in scan.warnings
    assert scan.task == "multilabel"
    assert {(entry.label, entry.split) for entry in entries} == {("p", "train"), ("p|q", "test")}
    found = {name: role for name, (role, _) in roles(scan).items()}
    assert found["v"] == "numbers"
    assert found["w"] == "drop", "bytes in one file"


def test_sequence_examples_are_refused(tmp_path: Path) -> None:
    context = encode_example({"n": 1, "y": 0})
    # Field 2, of 4 bytes: a feature list without features.
    sequences = b"\x12\x04\x0a\x02\x0a\x00"
    path = tmp_path / "seq.tfrecord"
    path.write_bytes(b"".join(frame(context + sequences)) * ROWS)
    with pytest.raises(DataError, match=r"no usable records: a tf\.train\.SequenceExample: write"):
        scanned(path)
    mixed = [encode_example({"n": i % 7, "y": i % 2}) for i in range(ROWS)]
    mixed[3] += sequences
    path.write_bytes(b"".join(b"".join(frame(each)) for each in mixed))
    assert rejected(scanned(path)[1])[0][1].startswith("a tf.train.SequenceExample")


@pytest.mark.parametrize("ending", ["", ".parquet"])
def test_missing_files_of_a_set_are_named(tmp_path: Path, ending: str) -> None:
    for number in (0, 2):
        path = tmp_path / f"all-0000{number}-of-00003{ending}"
        if ending:
            pq.write_table(rows(), path)
        else:
            write_records(path, [{"x": i / 2, "y": i % 2} for i in range(ROWS)])
    missing = f"not converted, since they are missing: all-00001-of-00003{ending}"
    for location in (tmp_path, tmp_path / "all-*"):
        assert missing in scanned(location)[1].warnings
    assert missing not in scanned(path)[1].warnings


@pytest.mark.parametrize(
    "name", ["train-00000-of-00001", "d.record", "d.tfrec", "records", "d.bin", "d.gz", "d.txt"]
)
def test_records_in_files_of_any_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    write_records(path, [{"x": i / 2, "y": i % 2} for i in range(ROWS)])
    if name == "d.gz":
        path.write_bytes(gzip.compress(path.read_bytes()))
    for location in (path, tmp_path / f"{name[:1]}*"):
        source, _, entries = scanned(location)
        assert values(source, entries, "x") == [i / 2 for i in range(ROWS)]
        assert source.plugin == "table"


def test_the_index_of_a_data_frame_is_no_column(tmp_path: Path) -> None:
    table = rows().append_column("__index_level_0__", pa.array(range(0, 3 * ROWS, 3)))
    pq.write_table(table, tmp_path / "rows.parquet")
    for location in (tmp_path / "rows.parquet", MemoryTable(table)):
        _, scan, _ = scanned(location)
        assert roles(scan).keys() == {"x", "c", "y"}
        assert scan.notes == ["__index_level_0__: the index of a DataFrame, left out"]
        _, scan, _ = scanned(location, columns={"__index_level_0__": "numeric"})
        assert roles(scan)["__index_level_0__"] == ("numeric", "as given")


def test_a_named_index_of_pandas_is_no_column(tmp_path: Path) -> None:
    frame = rows().to_pandas()
    frame.set_index(pd.Index([n * n for n in range(ROWS)], name="row")).to_parquet(
        tmp_path / "a.parquet"
    )
    frame.to_parquet(tmp_path / "b.parquet")  # a range in the metadata only
    _, scan, _ = scanned(tmp_path / "a.parquet")
    assert roles(scan).keys() == {"x", "c", "y"}
    assert scan.notes == ["row: the index of a DataFrame, left out"]
    _, scan, _ = scanned(tmp_path / "a.parquet", columns={"row": "numeric"})
    assert roles(scan)["row"] == ("numeric", "as given")
    assert scanned(tmp_path / "b.parquet")[1].notes == []


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_booleans_dates_and_numbers_as_texts_are_the_words_that_they_show(
    tmp_path: Path, kind: str
) -> None:
    days = [f"2024-01-{1 + i % 3:02}" for i in range(ROWS)]
    found = {
        "b": [i % 2 == 0 for i in range(ROWS)],
        "d": days if kind == "jsonl" else [dt.date.fromisoformat(day) for day in days],
        "n": [str(1 + i % 2) for i in range(ROWS)],
        "f": [0.5 + i % 2 for i in range(ROWS)],
        "x": [i / 7 for i in range(ROWS)],
        "y": [i % 2 == 0 for i in range(ROWS)],
    }
    path = tmp_path / f"rows.{kind}"
    if kind == "parquet":
        pq.write_table(pa.table(found), path)
    else:
        lines = (dict(zip(found, row, strict=True)) for row in zip(*found.values(), strict=True))
        path.write_text("\n".join(map(json.dumps, lines)))
    given = dict.fromkeys("bdnf", "categorical")
    source, _, entries = scanned(path, columns=given)
    words = {"b": ["true", "false"], "d": days[:2], "n": ["1", "2"], "f": ["0.5", "1.5"]}
    assert {name: values(source, entries[:2], name) for name in words} == words
    assert [entry.label for entry in entries[:2]] == ["true", "false"]
    _, _, entries = scanned(path, columns=given, label="d", task="classification")
    assert [entry.label for entry in entries[:3]] == days[:3]
    source, _, entries = scanned(path)
    assert values(source, entries[:2], "b") == [1.0, 0.0], "numbers, unless they are a category"


def test_locations_without_a_table(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(InputError, match=r"no installed source reads the file .*notes\.txt"):
        scanned(tmp_path / "notes.txt")
    with pytest.raises(InputError, match=r"no files match .*\*\.csv"):
        scanned(tmp_path / "*.csv")

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tests.contracts.sources import SourceContract
from timonel.data.sources import Source, SourceOptions, UnusableError
from timonel.data.sources.cells import Cells, group_rows, hashes_of, value_hashes
from timonel.data.sources.columns import Kinds, NumberColumn, WordArray
from timonel.data.sources.kinds import KINDS
from timonel.data.sources.kinds.dates import MISSING_DATE
from timonel.data.sources.listed import ListedFiles
from timonel.data.sources.table import TableSource
from timonel.storage.location import Location

COLUMNS = {
    "photo": "image",
    "mask": "mask",
    "note": "text",
    "day": "date",
    "raw": "bytes",
    "vector": "numbers",
    "objects": "boxes",
    "meta": "json",
}


class TestContract(SourceContract):
    """The contract of sources over a table with all kinds of columns."""

    @pytest.fixture
    def source(self, tmp_path: Path) -> Source:
        rows = []
        for row in range(12):
            pixels = np.random.default_rng(row).integers(0, 3, (5, 4), np.uint8)
            Image.fromarray(pixels).save(tmp_path / f"{row}.png")
            rows.append(
                {
                    "photo": [f"{row}.png"] * (1 + row % 2),
                    "mask": f"{row}.png",
                    "note": f"note {row}",
                    "day": f"2024-01-{row + 1:02d}",
                    "raw": "AAE=",
                    "vector": [0.5] * (row % 3),
                    "objects": [[0, 0, 1, 1]] * (row % 3),
                    "meta": {"row": row},
                    "size": row + 0.5,
                    "kind": "ab"[row % 2],
                    "y": "pq"[row % 2],
                }
            )
        path = tmp_path / "rows.jsonl"
        path.write_text("\n".join(map(json.dumps, rows)))
        return TableSource(
            Location(path), SourceOptions.model_validate({"label": "y", "columns": COLUMNS})
        )


def groups(
    numbers: list[str], words: list[str], texts: list[str | None]
) -> tuple[list[str], list[tuple[str, str, str | None]]]:
    """Return the group of each of many rows, all of which occur twice, with their values."""
    rows = list(zip(numbers, words, texts, strict=True))
    filler = [(f"{1000 + i}", f"w{i}", f"t{i}") for i in range(20 * len(rows))]
    everything = [*rows, *filler, *rows]
    columns = list(zip(*everything, strict=True))
    cells = Cells(ListedFiles(Location("t.csv")))
    cells.add("text", KINDS["text"], pa.array(columns[2], pa.string()))
    plain = {
        "number": NumberColumn.of(Kinds.of(pa.array(columns[0]))),
        "word": WordArray.of(pa.array(columns[1])),
    }
    found = [name for name in group_rows(plain, cells, {}).names if name is not None]
    assert len(found) == len(everything)
    return found, everything


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from("ab"), st.sampled_from(["x", "None", None])),
        min_size=1,
        max_size=10,
        unique=True,
    )
)
def test_rows_have_equal_groups_if_their_values_are_equal(
    rows: list[tuple[int, str, str | None]],
) -> None:
    found, values = groups(
        [str(n) for n, _, _ in rows], [w for _, w, _ in rows], [t for *_, t in rows]
    )
    by_group: dict[str, set[tuple[str, str, str | None]]] = {}
    for group, value in zip(found, values, strict=True):
        by_group.setdefault(group, set()).add(value)
    assert all(len(equal) == 1 for equal in by_group.values())
    assert len(by_group) == len(set(values))


def test_a_group_does_not_depend_on_other_rows() -> None:
    one, _ = groups(["1", "2"], ["a", "b"], ["x", "y"])
    other, _ = groups(["2", "3"], ["b", "c"], ["y", "z"])
    assert one[1] == other[0]


def test_rows_that_often_repeat_are_no_copies() -> None:
    words = WordArray.of(
        pa.array([*(["a", "b"] * 50), *map(str, range(100)), *map(str, range(100))])
    )
    found = group_rows({"word": words}, Cells(ListedFiles(Location("t.csv"))), {})
    assert found.names[:100] == [None] * 100
    assert found.names[100:200] == found.names[200:]
    assert found.divided == 100


def test_a_dropped_column_moves_no_row_but_those_that_become_identical() -> None:
    numbers = NumberColumn.of(Kinds.of(pa.array([str(i // 2 if i < 4 else i) for i in range(50)])))
    words = WordArray.of(pa.array([f"w{i}" for i in range(50)]))
    cells = Cells(ListedFiles(Location("t.csv")))
    whole = group_rows({"number": numbers, "word": words}, cells, {}).names
    found = group_rows({"number": numbers}, cells, {"word": hashes_of(words)}).names
    assert found[4:] == whole[4:]
    assert found[0] == found[1] in whole[:2]
    assert found[2] == found[3] in whole[2:4]


def test_rows_that_often_repeat_without_a_dropped_column_are_divided_by_it() -> None:
    few = WordArray.of(pa.array(["a", "b"] * 50))
    many = WordArray.of(pa.array([f"w{i}" for i in range(100)]))
    cells = Cells(ListedFiles(Location("t.csv")))
    found = group_rows({"few": few}, cells, {"many": hashes_of(many)})
    assert found.names == group_rows({"few": few, "many": many}, cells, {}).names
    assert found.divided == 100


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (pa.timestamp("s"), 86400, -(10**11)),
        (pa.timestamp("s", "Europe/Berlin"), 86400, 2**62),
        (pa.date32(), 1, 10**7),
    ],
)
def test_dates_that_python_lacks_are_rejected(kind: pa.DataType, good: int, bad: int) -> None:
    cells = Cells(ListedFiles(None))
    width = pa.int32() if kind == pa.date32() else pa.int64()
    cells.add("day", KINDS["date"], pa.array([good, bad, None], width).cast(kind))
    assert cells.read("a", 0).features == {"column/day": 86400}
    with pytest.raises(UnusableError, match="expected a date such as"):
        cells.read("b", 1)
    assert cells.read("c", 2).features == {"column/day": MISSING_DATE}
    assert len(set(value_hashes(cells.columns["day"]))) == 3

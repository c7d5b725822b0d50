"""Contract of all kinds of columns, and what each accepts."""

from __future__ import annotations

import datetime as dt
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from PIL import Image
from pydantic import TypeAdapter

from timonel.data.examples import decode_example, encode_example
from timonel.data.schema import Column, parse_column_type
from timonel.data.sources import UnusableError
from timonel.data.sources.kinds import KINDS
from timonel.data.sources.kinds.dates import MISSING_DATE
from timonel.data.statistics import Collector, Statistics, merged


def picture(mode: str = "RGB", form: str = "PNG", size: tuple[int, int] = (5, 4)) -> bytes:
    random = np.random.default_rng(0)
    shape = (size[1], size[0], 3) if mode == "RGB" else (size[1], size[0])
    pixels = random.integers(0, 3, shape, np.uint8)
    image = Image.fromarray(pixels)
    if mode == "P":
        image = Image.fromarray(pixels).convert("P")
        image.putdata(pixels.ravel().tolist())
        image.putpalette([200, 10, 10, 10, 200, 10, 10, 10, 200])
    buffer = io.BytesIO()
    image.save(buffer, form)
    return buffer.getvalue()


FILES = {"a.png": picture(), "b.jpg": picture(form="JPEG", size=(7, 6)), "m.png": picture("L")}


def read(name: str) -> bytes:
    if name not in FILES:
        raise UnusableError(name, f"cannot read {name}: No such file")
    return FILES[name]


@dataclass(frozen=True)
class Case:
    """Values that a kind accepts, with the one that is missing, and values that it rejects."""

    good: Sequence[Any]
    missing: Sequence[Any]
    bad: Sequence[Any]


CASES = {
    "text": Case(["a b", " padded ", "NA", 5], [None, ""], [b"x", ["a"]]),
    "json": Case(
        ['{"a": [1]}', "[]", "1", {"a": None}], [None, " "], ["{", "NaN", {"a": math.inf}]
    ),
    "bytes": Case([b"\0\1", "AAE="], [None, ""], ["not base64!", 5]),
    "date": Case(
        ["2024-01-31", "2024/1/31", "1969-12-31T23:59:59.5Z", dt.date(2024, 1, 1), 20240131],
        [None, "", "NaT", "n/a"],
        ["01/02/2024", "2024-13-01", "yesterday", 5, dt.time(12), "2024-01-01 13:00 PM"],
    ),
    "dmy": Case(["31/01/2024", "1.2.2024 9:30", "2024-01-31"], ["-NaN"], ["01/31/2024", "1/2/24"]),
    "mdy": Case(["01/31/2024", "1-2-2024 9:30 pm"], [" "], ["31/01/2024", "1/2/24"]),
    "numbers": Case(
        ["1 2.5", "1;2;3", "[1, 2]", [1, 2.0], np.array([1.5])],
        [None, ""],
        ["1 x", "[1, null]", "[1, [2]]", [math.inf], "1e39", [True], "nan 1", "{}"],
    ),
    "boxes": Case(
        ["[[0, 0, 1, 1]]", "[0.1, 0.2, 0.3, 0.4, 7]", [], [[0, 0, 0.5, 0.5, 2]]],
        [None, ""],
        [
            *("[[10, 20, 30, 40]]", "[[0, 0, 1]]", "[[0.5, 0, 0.5, 1]]", "[[0.5, 0, 0.1, 1]]"),
            *('[[0, 0, 1, 1, "cat"]]', "[[0, 0, 1, 1, -1]]", "[[0, 0, 1, 1, 1.5]]", "0 0 1 1"),
            "[[0, 0, 1, NaN]]",
        ],
    ),
    "image": Case(
        ["a.png", "a.png|b.jpg", '["a.png"]', FILES["b.jpg"], {"bytes": FILES["a.png"]}],
        [],
        [None, "", "none.png", b"text", FILES["b.jpg"][:-50], 5, "a.png|", {"path": None}],
    ),
    "mask": Case(
        ["m.png", FILES["m.png"], picture("P")],
        [],
        [None, "a.png", "b.jpg", "m.png|m.png", picture("L", "JPEG")],
    ),
}


def collected(kind: str, values: Sequence[Any]) -> Statistics:
    collector = Collector()
    for value in values:
        found = KINDS[kind].parse(value, read)
        collector.add("x", {"column/c": found.feature}, facts={"column/c": found.facts})
    return collector.statistics()


def test_each_kind_has_a_case() -> None:
    assert CASES.keys() == KINDS.keys()
    assert all(parse_column_type(kind) == kind for kind in KINDS)


@pytest.mark.parametrize("kind", CASES)
class TestContract:
    def test_values_fit_into_a_record_the_same_way_each_time(self, kind: str) -> None:
        for value in (*CASES[kind].good, *CASES[kind].missing):
            feature = KINDS[kind].parse(value, read).feature
            payload = encode_example({"c": feature})
            assert set(decode_example(payload)) == {"c"}
            assert encode_example({"c": KINDS[kind].parse(value, read).feature}) == payload

    def test_a_bad_value_is_an_error_of_one_line(self, kind: str) -> None:
        for value in CASES[kind].bad:
            with pytest.raises((ValueError, UnusableError)) as caught:
                KINDS[kind].parse(value, read)
            assert "\n" not in str(caught.value)

    def test_the_description_is_independent_of_shards_and_survives_json(self, kind: str) -> None:
        values = [*CASES[kind].good, *CASES[kind].missing]
        whole = collected(kind, values)
        parts = merged([collected(kind, values[:1]), collected(kind, values[1:])])
        column = KINDS[kind].describe("c", whole, whole)
        assert KINDS[kind].describe("c", parts, parts) == column
        assert (column.type, column.feature) == (KINDS[kind].type, "column/c")
        assert Statistics.model_validate_json(whole.model_dump_json()) == whole
        adapter: TypeAdapter[Column] = TypeAdapter(Column)
        assert adapter.validate_json(adapter.dump_json(column)) == column
        assert column.values

    def test_missing_values_are_counted(self, kind: str) -> None:
        values = [*CASES[kind].good, *CASES[kind].missing]
        whole = collected(kind, values)
        is_counted = kind != "boxes"
        expected = len(CASES[kind].missing) * is_counted
        assert KINDS[kind].describe("c", whole, whole).missing == expected


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1970-01-01", 0),
        ("1970-01-01T00:00:10", 10),
        ("1970-01-01 01:00:10+01:00", 10),
        ("1969-12-31T23:59:59.5Z", -1),
        ("1970/1/2", 86400),
        ("Fri, 2 Jan 1970 00:00:10 GMT", 86410),
        ("2-Jan-1970", 86400),
        ("January 2, 1970 12:00 AM", 86400),
        ("Feb 1970", 31 * 86400),
        ("1970-02", 31 * 86400),
        ("19700102T000010Z", 86410),
        ("0001-01-01T00:00+10:00", -62135596800 - 36000),
        ("", MISSING_DATE),
    ],
)
def test_dates_are_seconds_in_utc(text: str, seconds: int) -> None:
    feature = KINDS["date"].parse(text, read).feature
    assert feature == seconds
    assert decode_example(encode_example({"c": feature})) == {"c": [seconds]}


def test_the_order_of_day_and_month_is_that_of_the_column() -> None:
    days = {order: KINDS[order].parse("01/02/1970", read).feature for order in ("dmy", "mdy")}
    assert days == {"dmy": 31 * 86400, "mdy": 86400}
    with pytest.raises(ValueError, match="or 31/01/2024, got '01/02/70'"):
        KINDS["dmy"].parse("01/02/70", read)


def test_the_words_of_a_text_have_no_case_and_no_punctuation() -> None:
    words = KINDS["text"].parse("«Größe», size/SIZE: 5\u3000cm\u2014don't", read).facts.words
    assert sorted(words) == ["5", "cm", "don", "größe", "size", "t"]
    assert KINDS["json"].parse('{"a b": 1}', read).facts.words == ()


@given(st.datetimes(timezones=st.timezones()))
def test_a_typed_date_equals_its_text(moment: dt.datetime) -> None:
    offset = moment.utcoffset() or dt.timedelta()
    assume(not offset % dt.timedelta(minutes=1))  # as local times had before 1900
    typed = KINDS["date"].parse(moment, read).feature
    assert KINDS["date"].parse(moment.isoformat(), read).feature == typed


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1))
def test_numbers_are_the_same_as_text_json_and_list(numbers: list[float]) -> None:
    parse = KINDS["numbers"].parse
    expected = tuple(numbers)
    assert parse(numbers, read).feature == expected
    assert parse(str(numbers), read).feature == expected
    assert parse(" ; ".join(map(repr, numbers)), read).feature == expected


def test_boxes_are_stored_with_their_class_or_none() -> None:
    found = KINDS["boxes"].parse("[[0, 0.25, 0.5, 1], [0, 0, 1, 1, 3]]", read)
    assert found.feature == (0, 0.25, 0.5, 1, -1, 0, 0, 1, 1, 3)
    assert found.facts.length == 2


def test_the_bytes_of_images_are_unchanged() -> None:
    assert KINDS["image"].parse("a.png | b.jpg", read).feature == (FILES["a.png"], FILES["b.jpg"])


def test_a_palette_is_stored_as_class_numbers() -> None:
    content = picture("P")
    with Image.open(io.BytesIO(content)) as image:
        assert image.mode == "P"
        numbers = np.asarray(image)
    found = KINDS["mask"].parse(content, read)
    assert isinstance(found.feature, bytes)
    with Image.open(io.BytesIO(found.feature)) as stored:
        assert stored.mode == "L"
        assert np.array_equal(np.asarray(stored), numbers)
    assert KINDS["mask"].parse("m.png", read).feature == FILES["m.png"]


def test_a_mask_of_more_than_256_classes_is_rejected() -> None:
    buffer = io.BytesIO()
    Image.fromarray(np.full((4, 4), 300, np.uint16)).save(buffer, "PNG")
    with pytest.raises(ValueError, match="class numbers up to 255, got 300"):
        KINDS["mask"].parse(buffer.getvalue(), read)

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from timonel.errors import SpecError
from timonel.units import (
    ByteSize,
    Seconds,
    first_of,
    format_bytes,
    format_seconds,
    parse_bytes,
    parse_quantity,
    parse_seconds,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("64", 64),
        ("64b", 64),
        ("64MB", 64_000_000),
        ("64 MiB", 64 * 1024**2),
        ("1.5GiB", 3 * 512 * 1024**2),
        (" 2k ", 2000),
        ("1Ti", 1024**4),
        (12.9, 12),
        (0, 0),
    ],
)
def test_sizes(text: str | float, expected: int) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("90", 90), ("90s", 90), ("1.5h", 5400), ("2d", 172_800), ("5min", 300), ("5m", 300),
     ("250ms", 0.25), (3, 3), (0.5, 0.5)],
)  # fmt: skip
def test_durations(text: str | float, expected: float) -> None:
    assert parse_seconds(text) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("2", 2), ("500m", 0.5), ("4Gi", 4 * 1024**3), ("1.5Ki", 1536), ("128974848000m", 128_974_848),
     ("1e9", 10**9), ("1E3", 1000), ("1E", 10**18), ("12e-1", 1.2), (".5", 0.5), ("5.", 5),
     ("2k", 2000), ("3M", 3_000_000), ("+1", 1), ("1Ei", 1024**6), ("1000000000.0", 10**9)],
)  # fmt: skip
def test_quantities_of_kubernetes(text: str, expected: float) -> None:
    assert float(parse_quantity(text)) == expected


@pytest.mark.parametrize(
    "bad", ["", "-1", "1g", "1K", "1GB", "1 Gi", "1e", "Gi", ".", "1.2.3", "1e3Gi", "1e999", "nan",
            "9" * 101, "9" * 5000, "." + "9" * 5000],
)  # fmt: skip
def test_what_is_no_quantity_of_kubernetes(bad: str) -> None:
    with pytest.raises(SpecError, match="expected a quantity such as 500m or 4Gi"):
        parse_quantity(bad)


@pytest.mark.parametrize(
    "bad", ["", "GB", "-1", "1e3", "1 2", "12parsecs", "1.2.3", -1, math.nan, math.inf, True, None,
            "9" * 101, "9" * 400 + ".5", "9" * 5000, 10**400],
)  # fmt: skip
def test_what_is_no_quantity(bad: str | float) -> None:
    for parse in (parse_bytes, parse_seconds):
        with pytest.raises(SpecError, match="expected a") as caught:
            parse(bad)
        assert len(str(caught.value)) < 150


@given(st.integers(0, 10**30), st.sampled_from(["", "B", "kB", "KiB", "MB", "MiB", "GB", "TiB"]))
def test_whole_sizes_are_exact(count: int, unit: str) -> None:
    assert parse_bytes(count) == count
    assert parse_bytes(f"{count}{unit}") == count * parse_bytes(f"1{unit}")


@given(st.floats(0, 1e15))
def test_a_size_that_was_formatted_is_read_back_within_its_digits(count: float) -> None:
    text = format_bytes(count)
    assert parse_bytes(text.replace(" ", "")) == pytest.approx(count, rel=0.051, abs=1)
    number, unit = text.split(" ")
    assert unit == "TB" or float(number) < 1000


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (999_949, "999.9 kB"), (999_950, "1.0 MB"),
     (64_000_000, "64.0 MB"), (5 * 10**15, "5000.0 TB")],
)  # fmt: skip
def test_sizes_for_people(count: int, text: str) -> None:
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0.0s"), (0.44, "0.4s"), (9.94, "9.9s"), (9.95, "10s"), (59.4, "59s"), (59.6, "1m 00s"),
     (185, "3m 05s"), (3599.6, "1h 00m"), (7800, "2h 10m"), (4 * 3600 + 3 * 86400, "3d 4h")],
)  # fmt: skip
def test_durations_for_people(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


class Limits(BaseModel):
    size: ByteSize
    time: Seconds


def test_specifications_take_both() -> None:
    limits = Limits.model_validate({"size": "1kB", "time": "1m"})
    assert (limits.size, limits.time) == (1000, 60.0)
    with pytest.raises(ValidationError) as caught:
        Limits.model_validate({"size": "much", "time": "long"})
    assert caught.value.error_count() == 2
    assert "expected a size such as 64MB or 1.5GiB, got 'much'" in str(caught.value)


def test_the_first_of_many_names() -> None:
    assert first_of(["a", "b"], 2) == "a, b"
    assert first_of(["a", "b", "c", "d"], 2) == "a, b and 2 more"

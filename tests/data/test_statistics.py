from __future__ import annotations

import math
from array import array
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timonel.data.schema import ImageFormat
from timonel.data.statistics import (
    Collector,
    ImageFacts,
    NumberStatistics,
    Statistics,
    merged,
    spread_of,
)

NUMBERS = st.lists(st.floats(-1e6, 1e6) | st.just(math.nan), max_size=30)


@given(st.lists(NUMBERS, max_size=6))
def test_moments_of_parts_are_those_of_all_values(parts: list[list[float]]) -> None:
    whole = NumberStatistics()
    for part in parts:
        whole.merge(NumberStatistics.of(array("d", part)))
    values = np.array([value for part in parts for value in part])
    known = values[~np.isnan(values)] if len(values) else values
    assert (whole.count, whole.missing) == (len(known), len(values) - len(known))
    if len(known):
        assert (whole.minimum, whole.maximum) == (known.min(), known.max())
        assert whole.mean == pytest.approx(known.mean(), rel=1e-9, abs=1e-6)
        assert whole.std == pytest.approx(known.std(), rel=1e-6, abs=1e-3)
    else:
        assert whole.summary() == dict.fromkeys(("mean", "std", "minimum", "maximum"), 0)


def test_a_small_variance_beside_a_large_mean_is_kept() -> None:
    parts = [[1e9 + 1, 1e9 + 2], [1e9 + 3], [1e9 + 4, 1e9 + 5]]
    whole = NumberStatistics()
    for part in parts:
        whole.merge(NumberStatistics.of(array("d", part)))
    assert whole.std == pytest.approx(math.sqrt(2), rel=1e-6)


@given(st.lists(st.integers(1, 20), min_size=1))
def test_spreads_of_counted_values(values: list[int]) -> None:
    spread = spread_of(Counter(values))
    middle = sorted(values)[(len(values) - 1) // 2]
    assert (spread.minimum, spread.median, spread.maximum) == (min(values), middle, max(values))


def image(height: int, width: int, channels: int = 3, format_: ImageFormat = "jpeg") -> ImageFacts:
    return ImageFacts(format_, height, width, 1 if channels == 1 else 3, 100, "sha256:")


def test_images_of_several_shards() -> None:
    shards = []
    for sizes in ([(4, 5), (4, 5)], [(4, 5)], [(6, 5)]):
        collector = Collector()
        for size in sizes:
            collector.add("cat", {"image": b"content"}, image(*size, channels=size[0] - 3))
        shards.append(collector.statistics())
    one = merged(shards[:2]).images
    assert one is not None
    assert (one.size, one.is_uniform, one.grey) == ((4, 5), True, 3)
    several = merged(shards)
    assert several.images is not None
    assert not several.images.is_uniform
    assert (several.records, several.labels) == (4, {"cat": 4})
    assert several.images.heights == {4: 3, 6: 1}
    assert (several.images.formats, several.images.grey) == ({"jpeg": 4}, 3)


def test_columns_and_targets_of_several_shards() -> None:
    shards = []
    for rows in ([("red", 1.0), ("", 2.0)], [("red", math.nan), ("blue", 4.0)]):
        collector = Collector()
        for word, number in rows:
            features = {"column/colour": word, "column/size": number}
            collector.add(0.0 if math.isnan(number) else number, features, None)
        shards.append(collector.statistics())
    # As the journal stores them.
    stored = [Statistics.model_validate_json(shard.model_dump_json()) for shard in shards]
    whole = merged(stored)
    assert whole == merged(shards)
    colour, size = whole.words["colour"], whole.numbers["size"]
    assert (colour.ranked(), colour.missing) == ([("red", 2), ("blue", 1)], 1)
    assert (size.count, size.missing, size.mean) == (3, 1, pytest.approx(7 / 3))
    assert whole.target is not None
    assert (whole.target.count, whole.target.maximum) == (4, 4.0)
    assert whole.images is None

"""Apply a `Preprocessing` in a TensorFlow graph.

``load`` and the exported model share these functions, so training and serving preprocess alike.
The functions are stateless, so a SavedModel needs no lookup tables.

Shapes: B rows, H x W pixels, C channels, F features.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from timonel.data.preprocessing import (
    PERIODS_S,
    DateParts,
    Decode,
    ImagePreprocessing,
    MultiHot,
    Normalise,
    OneHot,
    TablePreprocessing,
)
from timonel.data.schema import BoxesColumn, DateType, ImageColumn, MaskColumn, NumbersColumn
from timonel.data.sources.kinds.dates import (
    MISSING_DATE,
    NO_DATE,
    YEAR_FIRST,
    expected_date,
    rewrites,
)
from timonel.data.sources.kinds.lists import BOX_VALUES
from timonel.data.sources.kinds.scalars import NO_WORDS, SURROUNDING_SPACES

_JPEG = b"\xff\xd8\xff"
_HASHES = 2**63 - 1
_RATIOS = (2, 4, 8)
"""Scales at which libjpeg decodes: 1/2, 1/4 and 1/8."""


def image_batch(spec: ImagePreprocessing, contents: Any, *, resize: bool = True) -> Any:
    """Decode encoded images string [B] to float32 [B, H, W, C].

    One loop over a batch takes 0.65 of the time of a ``Dataset.map`` over single images of 8 x 8
    pixels, and for photographs the same CPU time. Images that are known to have the target size
    need no ``resize``, which would give the same values more slowly.
    """
    shape = (spec.height, spec.width, spec.channels)
    keeps_type = not resize or spec.method == "nearest"
    # The nearest pixels are those of the file, as masks need.
    shrinks = spec.shrink_on_load and spec.method != "nearest"

    def pixels(content: Any) -> Any:
        if not resize:
            return tf.ensure_shape(_decoded(spec, content), shape)
        decoded = _decoded(spec, content) if not shrinks else _shrunk(spec, content)
        decoded.set_shape((None, None, spec.channels))
        resized = tf.image.resize(decoded, shape[:2], method=spec.method)
        # Floats of one image are still in the processor's cache, those of a batch are not.
        return resized if keeps_type else _scaled(spec, resized)

    signature = tf.TensorSpec(shape, tf.uint8 if keeps_type else tf.float32)
    values = tf.map_fn(pixels, contents, fn_output_signature=signature)
    return _scaled(spec, tf.cast(values, tf.float32)) if keeps_type else values


def _scaled(spec: ImagePreprocessing, values: Any) -> Any:
    if spec.scale != 1:
        values *= spec.scale
    return values + spec.offset if spec.offset else values


def _decoded(spec: ImagePreprocessing, content: Any) -> Any:
    return tf.io.decode_image(content, channels=spec.channels, expand_animations=False)


def _shrunk(spec: ImagePreprocessing, content: Any) -> Any:
    """Decode a JPEG at 1/2, 1/4 or 1/8 of its size if that covers the target size."""

    def halvings() -> Any:
        size = tf.io.extract_jpeg_shape(content)[:2]
        covers = [
            tf.reduce_all((size + ratio - 1) // ratio >= (spec.height, spec.width))
            for ratio in _RATIOS
        ]
        return tf.reduce_sum(tf.cast(covers, tf.int32))

    def at(ratio: int) -> Callable[[], Any]:
        return lambda: tf.io.decode_jpeg(content, channels=spec.channels, ratio=ratio)

    is_jpeg = tf.strings.substr(content, 0, len(_JPEG)) == _JPEG
    # The ratio is an attribute of the operation, not an input.
    return tf.switch_case(
        tf.cond(is_jpeg, halvings, lambda: tf.constant(0)),
        [lambda: _decoded(spec, content), *map(at, _RATIOS)],
    )


def table_batch(spec: TablePreprocessing, columns: Mapping[str, Any]) -> Any:
    """Return columns [B] as float32 [B, F] or dict of [B, width].

    Missing numbers are NaN, missing words empty strings.
    """
    parts: dict[str, Any] = {}
    for column in spec.columns:
        values = columns[column.column]
        if isinstance(column, Decode):
            parts |= decode_column(column, values)
        else:
            parts[column.column] = _encoded(column, values)
    return parts if spec.features == "columns" else tf.concat(list(parts.values()), axis=1)


def decode_column(transform: Decode, values: Any) -> dict[str, Any]:
    """Decode scalars [B] or a ragged tensor of lists: neither numbers nor categories.

    Returns the column by its name, padded if its rows have lists of several lengths; then also
    their lengths int32 [B] by ``NAME/count``; for boxes their classes by ``NAME/class``.
    """
    stored, name, image = transform.stored, transform.column, transform.image
    if isinstance(stored, NumbersColumn):
        return _padded(name, values, stored.shortest, stored.longest)
    if isinstance(stored, BoxesColumn):
        counts = values.row_lengths() // BOX_VALUES
        dense = values.to_tensor(-1.0, shape=(None, stored.most * BOX_VALUES))
        boxes = tf.reshape(dense, (tf.shape(dense)[0], stored.most, BOX_VALUES))
        found = {name: boxes[..., :4], f"{name}/count": tf.cast(counts, tf.int32)}
        if stored.classes:
            found[f"{name}/class"] = tf.cast(boxes[..., 4], tf.int32)
        return found
    if image is None:
        return {name: values}
    if isinstance(stored, MaskColumn):
        known = stored.size == (image.height, image.width)
        pixels = image_batch(image, values, resize=not known)
        return {name: tf.cast(pixels[..., 0], tf.int32)}
    if not isinstance(stored, ImageColumn):
        raise TypeError(stored.type)
    known = stored.size == (image.height, image.width)
    pixels = values.with_flat_values(image_batch(image, values.flat_values, resize=not known))
    if stored.fewest == stored.most == 1:
        return {name: pixels.flat_values}
    return _padded(name, pixels, stored.fewest, stored.most)


def _padded(name: str, values: Any, shortest: int, longest: int) -> dict[str, Any]:
    shape = (None, longest, *values.shape[2:])
    dense = tf.ensure_shape(values.to_tensor(0.0, shape=shape), shape)
    if shortest == longest:
        return {name: dense}
    return {name: dense, f"{name}/count": tf.cast(values.row_lengths(), tf.int32)}


def parse_dates(texts: Any, order: DateType = "date") -> Any:
    """Return texts string [B] such as 2024-01-31T12:30:00+02:00 as seconds since 1970, int64 [B].

    As in a conversion: UTC without a time zone, missing if empty; ``order`` is that of day and
    month with the year last. A text that is no date is an InvalidArgumentError, also when the graph
    runs.
    """
    texts = _trim(texts)
    is_missing = tf.strings.regex_full_match(texts, NO_DATE)
    known = tf.where(is_missing, "1970-01-01", texts)
    for old, new in rewrites(order):
        known = tf.strings.regex_replace(known, old, new, replace_global=False)
    is_shaped = tf.strings.regex_full_match(known, YEAR_FIRST)
    groups = [tf.strings.regex_replace(known, YEAR_FIRST, rf"\{i + 1}") for i in range(9)]
    half = tf.strings.lower(groups.pop(6))
    is_negative = tf.strings.substr(groups[6], 0, 1) == "-"
    groups[2] = tf.where(groups[2] == "", "1", groups[2])
    groups = [tf.where(is_shaped & (group != ""), group, "0") for group in groups]
    year, month, day, hour, minute, second, zone_h, zone_min = (
        tf.strings.to_number(group, tf.int64) for group in groups
    )
    length = _days(year, month + 1, 1) - _days(year, month, 1)
    is_valid = is_shaped & (year >= 1) & (month >= 1) & (month <= 12) & (day >= 1) & (day <= length)
    is_valid &= (hour < 24) & (minute < 60) & (second < 60)
    is_valid &= ~is_shaped | (half == "") | (hour >= 1) & (hour <= 12)
    hour = tf.where(half == "", hour, hour % 12 + tf.cast(half == "p", tf.int64) * 12)
    wrong = tf.boolean_mask(texts, ~is_valid)
    message = f"expected {expected_date(order)}, got"
    check = tf.debugging.Assert(tf.reduce_all(is_valid), [message, wrong])
    offset = zone_h * 60 + tf.where(is_negative, -zone_min, zone_min)
    with tf.control_dependencies([check] if check is not None else []):
        seconds = ((_days(year, month, day) * 24 + hour) * 60 + minute - offset) * 60 + second
        return tf.where(is_missing, tf.constant(MISSING_DATE, tf.int64), seconds)


def _trim(texts: Any) -> Any:
    """Remove surrounding spaces as a conversion does; `tf.strings.strip` knows only ASCII."""
    return tf.strings.regex_replace(texts, SURROUNDING_SPACES, "")


def _days(year: Any, month: Any, day: Any) -> Any:
    """Return days since 1970 in the Gregorian calendar; months may be up to 13."""
    # Years begin in March, so that the leap day is the last one.
    year = tf.where(month <= 2, year - 1, year)
    from_march = (month + 9) % 12
    of_year = (153 * from_march + 2) // 5 + day - 1
    return year * 365 + year // 4 - year // 100 + year // 400 + of_year - 719_468


def _date_parts(transform: DateParts, seconds: Any) -> Any:
    span = max(1, transform.maximum - transform.minimum)
    parts = [tf.cast(seconds - transform.minimum, tf.float32) / span]
    for period in PERIODS_S:
        angle = tf.cast(seconds % period, tf.float32) * (2 * math.pi / period)
        parts += [tf.sin(angle), tf.cos(angle)]
    is_missing = seconds == tf.constant(MISSING_DATE, tf.int64)
    return tf.where(is_missing[:, tf.newaxis], 0.0, tf.stack(parts, axis=1))


def _multi_hot(vocabulary: Sequence[str], texts: Any) -> Any:
    """Return float32 [B, words] with 1 for each word of the vocabulary that a text has."""
    plain = tf.strings.lower(tf.strings.regex_replace(texts, NO_WORDS, " "), encoding="utf-8")
    found = tf.strings.split(plain)
    words = tf.constant(vocabulary, tf.string)
    # A search among hashes: a comparison with each word takes 50 times as long.
    hashes = tf.strings.to_hash_bucket_fast(words, _HASHES)
    order = tf.argsort(hashes)
    near = tf.searchsorted(
        tf.gather(hashes, order), tf.strings.to_hash_bucket_fast(found.flat_values, _HASHES)
    )
    index = tf.gather(order, tf.minimum(near, len(vocabulary) - 1))
    known = tf.gather(words, index) == found.flat_values
    rows = tf.cast(found.value_rowids(), tf.int32)
    places = tf.boolean_mask(tf.stack([rows, index], axis=1), known)
    ones = tf.ones(tf.shape(places)[:1])
    return tf.minimum(tf.scatter_nd(places, ones, [tf.size(texts), len(vocabulary)]), 1.0)


def _encoded(transform: Normalise | OneHot | MultiHot | DateParts, values: Any) -> Any:
    if isinstance(transform, DateParts):
        return _date_parts(transform, values)
    if isinstance(transform, MultiHot):
        return _multi_hot(transform.vocabulary, values)
    if isinstance(transform, Normalise):
        scores = (tf.cast(values, tf.float32) - transform.mean) / transform.std
        # A comparison with NaN is false. Infinite numbers count as missing, as in a conversion.
        return tf.where(tf.abs(scores) <= tf.float32.max, scores, 0.0)[:, tf.newaxis]
    words = tf.constant(transform.vocabulary, tf.string)
    known = tf.equal(_trim(values)[:, tf.newaxis], words[tf.newaxis])
    unknown = tf.logical_not(tf.reduce_any(known, axis=1, keepdims=True))
    return tf.cast(tf.concat([unknown, known], axis=1), tf.float32)

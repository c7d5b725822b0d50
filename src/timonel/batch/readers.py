"""Read a shard of the input in batches.

A reader finds the rows in the calling thread; reading files and parsing happen in the function
that it yields per batch, which other threads call.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import orjson
import pyarrow as pa

from timonel.batch.plan import RECORD, PartPlan, PredictionSpec
from timonel.batch.tables import Column, is_scalar, read_csv
from timonel.data.examples import decode_example
from timonel.data.schema import KEY_FEATURE, LABEL_FEATURE
from timonel.data.sources.arrow import as_values, text_of
from timonel.data.sources.arrowfile import open_parquet
from timonel.data.sources.base import UnusableError
from timonel.data.sources.imagefile import image_format
from timonel.data.sources.kinds.dates import date_text
from timonel.data.sources.listed import ListedFiles
from timonel.data.sources.recordfiles import RecordFile
from timonel.data.sources.textfile import open_lines
from timonel.data.sources.transient import retried, unreadable
from timonel.errors import CorruptError
from timonel.serving.codec.tensors import is_b64
from timonel.storage.digests import digest_bytes
from timonel.storage.location import Location
from timonel.storage.uris import without_credentials

TRUE_LABEL, TRUE_VALUE = "true_label", "true_value"

Failure = tuple[str, str]
"""Key of a row without a prediction, and the reason."""
ReadImage = tuple[str, str, str]
"""URI of the input file, name of the image, and its line in the digest of all."""


@dataclass(frozen=True)
class Rows:
    """Rows of the input, as columns.

    Args:
        columns: The model's inputs, by name.
        kept: Columns for the output, by name.
        failures: Rows that could not be read; they are not among the others.
        images: The image files that were read for the rows.
    """

    keys: Sequence[str]
    columns: Mapping[str, Column]
    kept: Mapping[str, Column] = field(default_factory=dict)
    failures: Sequence[Failure] = ()
    images: Sequence[ReadImage] = ()

    def __len__(self) -> int:
        return len(self.keys)

    def slice(self, start: int, end: int) -> Rows:
        """Return some of the rows, without failures."""
        return Rows(
            self.keys[start:end],
            {name: column[start:end] for name, column in self.columns.items()},
            {name: column[start:end] for name, column in self.kept.items()},
        )

    def without(self, wrong: Mapping[int, str]) -> Rows:
        """Return the rows without some, which become failures.

        Args:
            wrong: Reasons by row.
        """
        if not wrong:
            return self
        good = [row for row in range(len(self)) if row not in wrong]
        indices = pa.array(good, pa.int64())

        def taken(column: Column) -> Column:
            is_arrow = isinstance(column, pa.Array)
            return column.take(indices) if is_arrow else [column[row] for row in good]

        return Rows(
            taken(self.keys),
            {name: taken(column) for name, column in self.columns.items()},
            {name: taken(column) for name, column in self.kept.items()},
            [*self.failures, *((self.keys[row], wrong[row]) for row in sorted(wrong))],
        )


Load = Callable[[], Rows]


def read_batches(plan: PartPlan, job: PredictionSpec) -> Iterator[Load]:
    """Yield a function per batch that reads its rows."""
    for load in _READERS[plan.format](plan, job):
        yield partial(_with_images, load, plan.uri, job) if job.images else load


def _images(plan: PartPlan, job: PredictionSpec) -> Iterator[Load]:
    (name,) = job.columns
    for start in range(0, plan.records, job.batch_size):
        keys, uris = zip(*plan.images[start : start + job.batch_size], strict=True)
        yield partial(Rows, keys, {name: uris})


def _with_images(load: Load, table: str, job: PredictionSpec) -> Rows:
    """Load rows; replace texts in columns of images, which name files, by their content."""
    rows = load()
    files = ListedFiles(Location(table) if table else None, job.allow_http, job.allow_private)
    columns: dict[str, list[Any]] = {
        name: column.to_pylist() if isinstance(column, pa.Array) else list(column)
        for name, column in rows.columns.items()
        if name in job.images
    }
    wrong: dict[int, str] = {}
    images: list[ReadImage] = []
    for name, column in columns.items():
        for row, value in enumerate(column):
            if value is None or value == "":
                wrong[row] = _no_value(name)
            elif isinstance(value, str):
                try:
                    column[row] = content = _read_image(files, value)
                except UnusableError as error:
                    wrong[row] = error.reason
                    continue
                # As a conversion of the same folder or list, so that lineage joins the two.
                key = without_credentials(value) if table else rows.keys[row]
                images.append(
                    (table or value, key, f"{digest_bytes(content)} {len(content)} {key}")
                )
    found = replace(rows, columns={**rows.columns, **columns}).without(wrong)
    return replace(found, images=images)


def _read_image(files: ListedFiles, name: str) -> bytes:
    """Return the content of an image file."""
    try:
        content = retried(partial(files.read, name))
    except OSError as error:
        raise unreadable(name, error) from error
    if image_format(content[:16]) is None:
        what = "not a JPEG, PNG, GIF, BMP or WebP image" if content else "an empty file"
        raise UnusableError(name, what)
    return content


def _csv(plan: PartPlan, job: PredictionSpec) -> Iterator[Load]:
    file = read_csv(plan.uri, plan.modified)
    for start in range(0, plan.records, job.batch_size):
        keys = plan.keys(start, min(job.batch_size, plan.records - start))
        first = plan.first + start
        numbers = range(first, first + len(keys))
        wrong = {number - first: file.ragged[number] for number in numbers if number in file.ragged}
        part = file.table.slice(file.position(first), len(keys) - len(wrong))
        yield partial(of_table, part, keys, job, wrong)


def _parquet(plan: PartPlan, job: PredictionSpec) -> Iterator[Load]:
    names = {*job.columns.values(), *job.keep, *([job.key] if job.key else [])}
    start = 0
    with open_parquet(plan.location) as file:
        groups = range(plan.offset, file.num_row_groups)
        counts = itertools.accumulate(file.metadata.row_group(each).num_rows for each in groups)
        own = [each for each, count in zip(groups, counts, strict=True) if count <= plan.records]
        for batch in file.iter_batches(job.batch_size, row_groups=own, columns=sorted(names)):
            table = pa.Table.from_batches([batch])
            yield partial(of_table, table, plan.keys(start, len(batch)), job)
            start += len(batch)


def of_table(
    table: pa.Table,
    keys: Sequence[str],
    job: PredictionSpec,
    wrong: Mapping[int, str] | None = None,
) -> Rows:
    """Return the rows of a table.

    Args:
        keys: Default keys of its rows, and of wrong ones.
        wrong: Reasons why rows are not in the table, by the index of the key.
    """

    def column(name: str) -> pa.Array:
        return table[name].combine_chunks()

    wrong = wrong or {}
    rows = Rows(
        [key for row, key in enumerate(keys) if row not in wrong],
        {name: column(each) for name, each in job.columns.items()},
        {name: column(name) for name in job.keep},
        [(keys[row], reason) for row, reason in wrong.items()],
    )
    if job.key is None:
        return rows
    values = [_text(value) if _is_filled(value) else "" for value in as_values(table[job.key])]
    found = rows.without({row: _no_value(job.key) for row, key in enumerate(values) if not key})
    return replace(found, keys=[key for key in values if key])


def _jsonl(plan: PartPlan, job: PredictionSpec) -> Iterator[Load]:
    with open_lines(plan.location) as file:
        if plan.offset:
            file.seek(plan.offset)
        lines = itertools.islice((line for line in file if line.strip()), plan.records)
        yield from _in_batches(lines, plan, job, _parse_line)


def _parse_line(line: bytes, job: PredictionSpec) -> Mapping[str, Any]:
    try:
        value = orjson.loads(line)
    except ValueError:
        value = _loads(line)  # takes NaN and the infinities too
    if isinstance(value, dict) and not is_b64(value):
        return value
    if len(job.columns) > 1 or job.key is not None or job.keep:
        raise ValueError("expected a JSON object")
    return dict.fromkeys(job.columns.values(), value)


def _loads(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        reason = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else error
        raise ValueError(f"not JSON: {reason}") from error


def _tfrecord(plan: PartPlan, job: PredictionSpec) -> Iterator[Load]:
    payloads = (payload for _, payload in RecordFile(plan.location).payloads(plan.offset))
    yield from _in_batches(itertools.islice(payloads, plan.records), plan, job, _parse_record)


def _parse_record(payload: bytes | None, job: PredictionSpec) -> Mapping[str, Any]:
    if payload is None:
        raise ValueError("a wrong checksum")
    if RECORD in job.columns.values():
        return {RECORD: payload}
    try:
        features = decode_example(payload)
    except CorruptError as error:
        raise ValueError(error.message) from error
    return {name: values[0] if len(values) == 1 else values for name, values in features.items()}


def _in_batches(
    lines: Iterator[Any],
    plan: PartPlan,
    job: PredictionSpec,
    parse: Callable[[Any, PredictionSpec], Mapping[str, Any]],
) -> Iterator[Load]:
    start = 0
    while batch := list(itertools.islice(lines, job.batch_size)):
        yield partial(_parse_all, batch, plan.keys(start, len(batch)), job, parse)
        start += len(batch)


def _parse_all(
    lines: Sequence[Any],
    keys: Sequence[str],
    job: PredictionSpec,
    parse: Callable[[Any, PredictionSpec], Mapping[str, Any]],
) -> Rows:
    truth = (
        {} if job.labels is None else {(TRUE_LABEL if job.labels else TRUE_VALUE): LABEL_FEATURE}
    )
    inputs = [*job.columns.values(), *job.keep]
    names = [*job.columns, *(f"keep {name}" for name in job.keep), *truth]
    columns: dict[str, list[Any]] = {name: [] for name in names}
    found: list[str] = []
    failures: list[Failure] = []
    for key, line in zip(keys, lines, strict=True):
        try:
            row = parse(line, job)
            name = _key(row, key, job)
            # As in conversions, a name that a row lacks is a missing value; not all of them.
            lacks_all = row.keys().isdisjoint(job.columns.values())
            values = [row[each] if lacks_all else row.get(each) for each in inputs]
            values += [row[each] for each in truth.values()]
        except KeyError as error:
            failures.append((key, _no_value(error.args[0])))
        except ValueError as error:
            failures.append((key, str(error)))
        else:
            found.append(name)
            for column, value in zip(columns.values(), values, strict=True):
                column.append(value)
    kept = {name: [_text(value) for value in columns[f"keep {name}"]] for name in job.keep}
    if job.labels:
        kept[TRUE_LABEL] = [job.labels[number] for number in columns[TRUE_LABEL]]
    elif job.labels is not None:
        kept[TRUE_VALUE] = columns[TRUE_VALUE]
    for name in job.dates:
        columns[name] = list(map(date_text, columns[name]))
    return Rows(found, {name: columns[name] for name in job.columns}, kept, failures)


def _key(row: Mapping[str, Any], default: str, job: PredictionSpec) -> str:
    if job.key is not None:
        if not _is_filled(row.get(job.key)):
            raise KeyError(job.key)
        return _text(row[job.key])
    # Records of datasets have keys.
    return _text(row[KEY_FEATURE]) if job.labels is not None else default


def _is_filled(value: object) -> bool:
    return value is not None and value not in ("", b"", [])


def _no_value(column: str) -> str:
    return f"no value for {column}"


def _text(value: object) -> str:
    """Return a value as text, of one type for all rows."""
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return text_of(value) if is_scalar(value) else json.dumps(value, default=str)


_READERS: Mapping[str, Callable[[PartPlan, PredictionSpec], Iterator[Load]]] = {
    "images": _images,
    "csv": _csv,
    "parquet": _parquet,
    "jsonl": _jsonl,
    "tfrecord": _tfrecord,
}

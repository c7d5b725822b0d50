"""Read a shard of the input in batches.

A reader finds the rows in the calling thread; reading files and parsing happen in the function
that it yields per batch, which other threads call.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from timonel.batch.inputs import open_lines
from timonel.batch.plan import RECORD, JobSpec, ShardPlan
from timonel.batch.tables import Column, read_table
from timonel.data.examples import decode_example
from timonel.data.records import read_appended, read_stream
from timonel.data.schema import KEY_FEATURE, LABEL_FEATURE
from timonel.data.sources.imagefile import image_format
from timonel.data.sources.transient import NEVER_READABLE, retried, unreadable
from timonel.errors import CorruptError, DataError, NotFoundError
from timonel.serving.protocols.tfs_rest.tensors import is_b64
from timonel.storage.location import Location

TRUE_LABEL, TRUE_VALUE = "true_label", "true_value"

Failure = tuple[str, str]
"""Key of a row without a prediction, and the reason."""


@dataclass(frozen=True)
class Rows:
    """Rows of the input, as columns.

    Args:
        keys: The key of each row.
        columns: The model's inputs, by name.
        kept: Columns for the output, by name.
        failures: Rows that could not be read; they are not among the others.
    """

    keys: Sequence[str]
    columns: Mapping[str, Column]
    kept: Mapping[str, Column] = field(default_factory=dict)
    failures: Sequence[Failure] = ()

    def __len__(self) -> int:
        return len(self.keys)

    def slice(self, start: int, end: int) -> Rows:
        """Return some of the rows, without failures."""
        return Rows(
            self.keys[start:end],
            {name: column[start:end] for name, column in self.columns.items()},
            {name: column[start:end] for name, column in self.kept.items()},
        )


Load = Callable[[], Rows]


def read_batches(plan: ShardPlan, job: JobSpec) -> Iterator[Load]:
    """Yield a function per batch that reads its rows.

    Raises:
        DataError: The file is damaged; also from the functions.
        InputError: The file cannot be read now; also from the functions.
    """
    return _READERS[plan.format](plan, job)


def _images(plan: ShardPlan, job: JobSpec) -> Iterator[Load]:
    (name,) = job.columns
    for start in range(0, plan.records, job.batch_size):
        yield partial(_load_images, plan.images[start : start + job.batch_size], name)


def _load_images(images: Sequence[tuple[str, str]], name: str) -> Rows:
    found: dict[str, bytes] = {}
    failures: list[Failure] = []
    for key, uri in images:
        try:
            content = retried(Location(uri).read)
        except NEVER_READABLE as error:
            failures.append((key, f"cannot read it: {error.strerror}"))
        except NotFoundError:
            failures.append((key, "cannot read it: it does not exist any more"))
        except OSError as error:
            raise unreadable(uri, error) from error
        else:
            if image_format(content[:16]) is None:
                what = "not a JPEG, PNG, GIF, BMP or WebP image" if content else "an empty file"
                failures.append((key, what))
            else:
                found[key] = content
    return Rows(list(found), {name: list(found.values())}, failures=failures)


def _csv(plan: ShardPlan, job: JobSpec) -> Iterator[Load]:
    table = read_table(plan.uri, plan.modified).slice(plan.first, plan.records)
    for start in range(0, plan.records, job.batch_size):
        part = table.slice(start, job.batch_size)
        yield partial(_of_table, part, plan.keys(start, part.num_rows), job)


def _parquet(plan: ShardPlan, job: JobSpec) -> Iterator[Load]:
    names = {*job.columns.values(), *job.keep, *([job.key] if job.key else [])}
    start, copy = 0, plan.location
    try:
        with pq.ParquetFile(copy.local) as file:
            groups = range(plan.offset, file.num_row_groups)
            counts = itertools.accumulate(file.metadata.row_group(each).num_rows for each in groups)
            own = [
                each for each, count in zip(groups, counts, strict=True) if count <= plan.records
            ]
            for batch in file.iter_batches(job.batch_size, row_groups=own, columns=sorted(names)):
                table = pa.Table.from_batches([batch])
                yield partial(_of_table, table, plan.keys(start, len(batch)), job)
                start += len(batch)
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"cannot read {plan.uri}: {error}") from error


def _of_table(table: pa.Table, keys: Sequence[str], job: JobSpec) -> Rows:
    def column(name: str) -> pa.Array:
        return table[name].combine_chunks()

    if job.key is not None:
        if table[job.key].null_count:
            raise DataError(f"a row has no value in {job.key}, the column with the keys")
        keys = [str(key) for key in table[job.key].to_pylist()]
    columns = {name: column(each) for name, each in job.columns.items()}
    return Rows(keys, columns, {name: column(name) for name in job.keep})


def _jsonl(plan: ShardPlan, job: JobSpec) -> Iterator[Load]:
    with open_lines(plan.location) as file:
        file.seek(plan.offset)
        lines = itertools.islice((line for line in file if line.strip()), plan.records)
        yield from _in_batches(lines, plan, job, _parse_line)


def _parse_line(line: bytes, job: JobSpec) -> Mapping[str, Any]:
    try:
        value = orjson.loads(line)
    except ValueError:
        value = json.loads(line)  # takes NaN and the infinities too
    if isinstance(value, dict) and not is_b64(value):
        return value
    if len(job.columns) > 1 or job.key is not None or job.keep:
        raise ValueError("expected a JSON object")
    return dict.fromkeys(job.columns.values(), value)


def _tfrecord(plan: ShardPlan, job: JobSpec) -> Iterator[Load]:
    copy = plan.location
    if plan.uri.endswith(".gz"):
        payloads = read_stream(copy.local)
    else:
        payloads = (payload for payload, _ in read_appended(copy.local, plan.offset))
    yield from _in_batches(itertools.islice(payloads, plan.records), plan, job, _parse_record)


def _parse_record(payload: bytes, job: JobSpec) -> Mapping[str, Any]:
    if RECORD in job.columns.values():
        return {RECORD: payload}
    try:
        features = decode_example(payload)
    except CorruptError as error:
        raise ValueError(error.message) from error
    return {name: values[0] if len(values) == 1 else values for name, values in features.items()}


def _in_batches(
    lines: Iterator[bytes],
    plan: ShardPlan,
    job: JobSpec,
    parse: Callable[[bytes, JobSpec], Mapping[str, Any]],
) -> Iterator[Load]:
    start = 0
    while batch := list(itertools.islice(lines, job.batch_size)):
        yield partial(_parse_all, batch, plan.keys(start, len(batch)), job, parse)
        start += len(batch)


def _parse_all(
    lines: Sequence[bytes],
    keys: Sequence[str],
    job: JobSpec,
    parse: Callable[[bytes, JobSpec], Mapping[str, Any]],
) -> Rows:
    truth = (
        {} if job.labels is None else {(TRUE_LABEL if job.labels else TRUE_VALUE): LABEL_FEATURE}
    )
    wanted = {**job.columns, **{f"keep {name}": name for name in job.keep}, **truth}
    columns: dict[str, list[Any]] = {name: [] for name in wanted}
    found: list[str] = []
    failures: list[Failure] = []
    for key, line in zip(keys, lines, strict=True):
        try:
            row = parse(line, job)
            name = _key(row, key, job)
            values = [row[each] for each in wanted.values()]
        except KeyError as error:
            failures.append((key, f"no value for {error.args[0]}"))
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
    return Rows(found, {name: columns[name] for name in job.columns}, kept, failures)


def _key(row: Mapping[str, Any], default: str, job: JobSpec) -> str:
    if job.key is not None:
        if row[job.key] is None:
            raise KeyError(job.key)
        return _text(row[job.key])
    # Records of datasets have keys.
    return _text(row[KEY_FEATURE]) if job.labels is not None else default


def _text(value: object) -> str:
    """Return a value of JSON or of a tf.train.Example as text, of one type for all rows."""
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return value if isinstance(value, str) else json.dumps(value, default=_text)


_READERS: Mapping[str, Callable[[ShardPlan, JobSpec], Iterator[Load]]] = {
    "images": _images,
    "csv": _csv,
    "parquet": _parquet,
    "jsonl": _jsonl,
    "tfrecord": _tfrecord,
}

"""Match the columns of the input with the inputs of a model, before anything runs."""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Iterable, Mapping, Sequence

from timonel.batch.inputs import InputFile, Inputs
from timonel.batch.plan import RECORD
from timonel.batch.readers import TRUE_LABEL, TRUE_VALUE
from timonel.data.examples import decode_example
from timonel.data.schema import COLUMN_PREFIX, IMAGE_FEATURE, DateColumn, TableSchema
from timonel.data.sources.arrowfile import open_parquet
from timonel.data.sources.csvfile import CsvFile
from timonel.data.sources.recordfiles import RecordFile
from timonel.data.sources.textfile import open_lines
from timonel.errors import CorruptError, DataError, InputError, SpecError
from timonel.serving.client.connection import is_image
from timonel.serving.codec.tensors import is_b64
from timonel.serving.signature import STRING, Signature

_IMAGES = (IMAGE_FEATURE, "image/encoded", "image_bytes", "image_uri")
"""Names of images in records of timonel and TensorFlow Datasets, in requests, and in lists."""

_SAMPLE = 20


def match_columns(
    found: Inputs, signature: Signature, wanted: Collection[str] = ()
) -> dict[str, str]:
    """Return the column for each input of the model, in all files.

    Args:
        signature: The model's signature.
        wanted: Other columns that must exist.
    """
    if found.files[0].format == "images":
        return _of_images(signature, wanted)
    columns: dict[str, str] = {}
    # The files of a dataset have the same columns.
    for file in found.files if found.dataset is None else found.files[:1]:
        names = _names(file)
        if names is None or names:
            columns = columns or _of_file(file, names, signature, wanted)
            _check(file, names, [*columns.values(), *wanted], signature)
    return columns


def images_of(signature: Signature) -> tuple[str, ...]:
    """Return the names of the inputs that are encoded images."""
    return tuple(name for name, spec in signature.inputs.items() if is_image(name, spec.dtype))


def dates_of(found: Inputs, columns: Mapping[str, str], signature: Signature) -> tuple[str, ...]:
    """Return the names of the inputs that take dates of a dataset as texts."""
    schema = None if found.dataset is None else found.dataset.manifest.record_schema
    stored = schema.columns if isinstance(schema, TableSchema) else ()
    dates = {f"{COLUMN_PREFIX}{each.name}" for each in stored if isinstance(each, DateColumn)}
    return tuple(
        name
        for name, column in columns.items()
        if column in dates and signature.inputs[name].dtype == STRING
    )


def check_outputs(signature: Signature, keep: Sequence[str], *, has_labels: bool) -> None:
    """Check that no columns of the output have the same name."""
    own = ["key", *([TRUE_LABEL, TRUE_VALUE] if has_labels else []), *signature.outputs]
    for number, name in enumerate(keep):
        if name in own or name in keep[:number]:
            raise SpecError(
                f"the column {name!r} cannot be kept: the output has another one of that name",
                hint=f"leave out --keep {name}"
                if has_labels
                else f"rename the column in the input, or leave out --keep {name}",
            )


def _of_images(signature: Signature, wanted: Collection[str]) -> dict[str, str]:
    if wanted:
        raise SpecError(
            f"image files have no column {min(wanted)!r}", hint="leave out --key and --keep"
        )
    names = images_of(signature)
    if len(names) != 1 or len(signature.inputs) > 1:
        raise InputError(
            f"the model takes {_described(signature)}, got image files",
            hint="give a CSV, JSON lines, Parquet or TFRecord file",
        )
    return {names[0]: names[0]}


def _of_file(
    file: InputFile, names: Sequence[str] | None, signature: Signature, wanted: Collection[str]
) -> dict[str, str]:
    only = next(iter(signature.inputs)) if len(signature.inputs) == 1 else None
    if names is None:
        is_record = file.format == "tfrecord"
        if only is None or wanted or (is_record and signature.inputs[only].dtype != STRING):
            raise InputError(
                f"the rows of {file.uri} have no names",
                hint=f"the model takes {_described(signature)}",
            )
        return {only: RECORD if is_record else only}
    columns = {name: _column(name, names, signature) for name in signature.inputs}
    if only is not None and columns[only] not in names and file.format == "tfrecord" and not wanted:
        dtype = signature.inputs[only].dtype
        if dtype == STRING and not is_image(only, dtype):
            return {only: RECORD}  # the model parses tf.train.Examples
    return columns


def _check(
    file: InputFile, names: Sequence[str] | None, wanted: Iterable[str], signature: Signature
) -> None:
    """Check that a file has columns."""
    if names is None:
        return
    missing = [name for name in dict.fromkeys(wanted) if name not in names]
    if missing and missing != [RECORD]:
        raise InputError(
            f"{file.uri} lacks {', '.join(missing)}",
            hint=f"its columns are {', '.join(names)}; the model takes {_described(signature)}",
        )


def _column(name: str, names: Collection[str], signature: Signature) -> str:
    """Return the name of the column for an input of the model; its own name if there is none."""
    candidates = [name, COLUMN_PREFIX + name]
    if name in images_of(signature):
        candidates += _IMAGES
    return next((each for each in candidates if each in names), name)


def _names(file: InputFile) -> Sequence[str] | None:
    """Return the names of the columns; None for rows without names, empty without rows."""
    match file.format:
        case "csv":
            return CsvFile(file.location).peek(1)[0]
        case "parquet":
            with open_parquet(file.location) as content:
                return list(content.schema_arrow.names)
        case "jsonl":
            return _json_names(file)
    return _record_names(file)


def _json_names(file: InputFile) -> Sequence[str] | None:
    """Return the names in the first lines that are objects."""
    values, problem = [], ""
    with open_lines(file.location) as lines:
        for line in itertools.islice(filter(bytes.strip, lines), _SAMPLE):
            try:
                values.append(json.loads(line))
            except (ValueError, RecursionError) as error:
                problem = problem or str(error)
    if problem and not values:
        raise DataError(
            f"the first lines of {file.uri} are not JSON: {problem}",
            hint='write one JSON value per line, such as {"column": 1.0}',
        )
    rows = [value for value in values if isinstance(value, dict) and not is_b64(value)]
    return _distinct(rows) if rows or not values else None


def _record_names(file: InputFile) -> Sequence[str] | None:
    """Return the features of the first records; None if one is not a tf.train.Example."""
    payloads = (payload for _, payload in RecordFile(file.location).payloads())
    first = list(itertools.islice(filter(None, payloads), _SAMPLE))
    try:
        return _distinct(map(decode_example, first)) or (None if first else [])
    except CorruptError:
        return None


def _distinct(rows: Iterable[Iterable[str]]) -> list[str]:
    return list(dict.fromkeys(itertools.chain.from_iterable(rows)))


def _described(signature: Signature) -> str:
    return ", ".join(signature.inputs)

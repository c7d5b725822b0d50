"""Match the columns of the input with the inputs of a model, before anything runs."""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Mapping, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from timonel.batch.inputs import InputFile, open_lines
from timonel.batch.plan import RECORD
from timonel.batch.readers import TRUE_LABEL, TRUE_VALUE
from timonel.data.examples import decode_example
from timonel.data.records import read_stream
from timonel.data.schema import COLUMN_PREFIX, IMAGE_FEATURE
from timonel.data.sources.csvfile import CsvFile
from timonel.errors import CorruptError, DataError, InputError, SpecError
from timonel.serving.client.connection import is_image
from timonel.serving.protocols.tfs_rest.tensors import is_b64
from timonel.serving.signature import STRING, Signature
from timonel.storage.location import Location

_IMAGES = (IMAGE_FEATURE, "image/encoded", "image_bytes")
"""Names of encoded images in records of timonel and TensorFlow Datasets, and in requests."""


def match_columns(
    files: Sequence[InputFile], signature: Signature, wanted: Collection[str] = ()
) -> dict[str, str]:
    """Return the column for each input of the model.

    Args:
        files: The input.
        signature: The model's signature.
        wanted: Other columns that must exist.

    Raises:
        InputError: The model takes another kind of input, or a file lacks a column.
        DataError: A file cannot be read.
    """
    if files[0].format == "images":
        return _of_images(signature, wanted)
    found = [_of_file(file, signature, wanted) for file in _distinct(files)]
    return found[0]


def check_outputs(signature: Signature, keep: Sequence[str], *, has_labels: bool) -> None:
    """Check that no columns of the output have the same name.

    Raises:
        SpecError: Two have.
    """
    own = ["key", *([TRUE_LABEL, TRUE_VALUE] if has_labels else []), *signature.outputs]
    for number, name in enumerate(keep):
        if name in own or name in keep[:number]:
            raise SpecError(
                f"the column {name!r} cannot be kept: the output has another one of that name",
                hint="rename the column in the input",
            )


def _distinct(files: Sequence[InputFile]) -> Sequence[InputFile]:
    # Headers of tables are read at once; a file of lines or records is checked while it is read.
    return files if files[0].format in {"csv", "parquet"} else files[:1]


def _of_images(signature: Signature, wanted: Collection[str]) -> dict[str, str]:
    if wanted:
        raise SpecError(
            f"image files have no column {min(wanted)!r}", hint="leave out --key and --keep"
        )
    names = [name for name, spec in signature.inputs.items() if is_image(name, spec.dtype)]
    if len(names) != 1 or len(signature.inputs) > 1:
        raise InputError(
            f"the model takes {_described(signature)}, got image files",
            hint="give a CSV, JSON lines, Parquet or TFRecord file",
        )
    return {names[0]: names[0]}


def _of_file(file: InputFile, signature: Signature, wanted: Collection[str]) -> dict[str, str]:
    names = _names(file)
    if names is None:
        if len(signature.inputs) > 1 or wanted:
            raise InputError(
                f"the rows of {file.uri} have no names",
                hint=f"the model takes {_described(signature)}",
            )
        (only,) = signature.inputs
        return {only: RECORD if file.format == "tfrecord" else only}
    columns = {name: _column(name, names, signature) for name in signature.inputs}
    missing = [name for name, column in columns.items() if column is None]
    missing += [name for name in wanted if name not in names]
    if missing and len(signature.inputs) == 1 and file.format == "tfrecord" and not wanted:
        (spec,) = signature.inputs.values()
        if spec.dtype == STRING and not is_image(missing[0], STRING):
            return {missing[0]: RECORD}  # the model parses tf.train.Examples
    if missing:
        raise InputError(
            f"{file.uri} lacks {', '.join(missing)}",
            hint=f"its columns are {', '.join(names)}; the model takes {_described(signature)}",
        )
    return {name: column for name, column in columns.items() if column is not None}


def _column(name: str, names: Collection[str], signature: Signature) -> str | None:
    candidates = [name, COLUMN_PREFIX + name]
    if is_image(name, signature.inputs[name].dtype):
        candidates += _IMAGES
    return next((each for each in candidates if each in names), None)


def _names(file: InputFile) -> Sequence[str] | None:
    """Return the names of the columns; None for rows without names."""
    if file.format == "csv":
        names, _ = CsvFile(file.location).peek(1)
        return names
    if file.format == "parquet":
        return _parquet_names(file.location)
    if file.format == "jsonl":
        return _json_names(file)
    return _record_names(file)


def _parquet_names(location: Location) -> Sequence[str]:
    try:
        names: list[str] = pq.read_schema(location.local).names
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{location} is not a valid Parquet file: {error}") from error
    return names


def _json_names(file: InputFile) -> Sequence[str] | None:
    with open_lines(file.location) as lines:
        line = next((line for line in lines if line.strip()), b"")
    try:
        value = json.loads(line)
    except ValueError as error:
        raise DataError(
            f"the first line of {file.uri} is not JSON: {error}",
            hint='write one JSON value per line, such as {"column": 1.0}',
        ) from error
    is_row = isinstance(value, dict) and not is_b64(value)
    return list(value) if is_row else None


def _record_names(file: InputFile) -> Sequence[str] | None:
    for payload in itertools.islice(read_stream(file.location.local), 1):
        try:
            features: Mapping[str, object] = decode_example(payload)
        except CorruptError:
            return None
        return sorted(features) or None
    raise DataError(f"{file.uri} has no records")


def _described(signature: Signature) -> str:
    return ", ".join(signature.inputs)

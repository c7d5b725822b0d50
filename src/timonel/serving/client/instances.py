"""Convert image files, CSV, JSON and arrays to instances of a request."""

from __future__ import annotations

import base64
import itertools
import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from timonel.errors import DataError, InputError, NotFoundError
from timonel.serving.client.array_files import SUFFIXES, opened
from timonel.serving.client.connection import ClientSignature, Input, InstanceKind
from timonel.serving.signature import STRING

_IMAGE_STARTS = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF87a", b"GIF89a", b"BM")
_CSV_SUFFIXES = {".csv", ".tsv"}
_TABLE_SUFFIXES = _CSV_SUFFIXES | {".json", ".jsonl", ".ndjson"}
_FILE_SUFFIXES = _TABLE_SUFFIXES | SUFFIXES | {".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp"}
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
_VALUES = (bytes, int, float, list, tuple, np.ndarray, np.generic)
_FLOATS = {"DT_FLOAT", "DT_DOUBLE", "DT_HALF", "DT_BFLOAT16"}
_FLOAT32_MAX = float(np.finfo(np.float32).max)

Notify = Callable[[str], None]


@dataclass(frozen=True)
class Instance:
    """An input of a prediction: its source and JSON form."""

    source: str
    value: Any


def instances(
    inputs: object, signature: ClientSignature, notify: Notify = lambda _line: None
) -> list[Instance]:
    """Return one instance per image, row or tensor in ``inputs``.

    Args:
        inputs: Paths of images, a CSV, a JSON or NumPy file; encoded images as bytes; rows as
            dicts; JSON text; a pandas DataFrame; an array or nested lists; bare values, such as
            texts, for a model with one input. Cells of a CSV that `convert` treats as missing
            numbers become NaN; None is sent as null.
        notify: Called with a line on how a CSV was read, if that is not obvious.
    """
    check_files(inputs)
    inputs = opened(inputs)
    if signature.kind is InstanceKind.IMAGE:
        found = [_image(item, signature) for item in _as_list(inputs)]
    elif signature.kind is InstanceKind.ROW:
        found = list(_rows(inputs, signature, notify))
    else:
        found = _tensors(inputs, signature, notify)
    if not found:
        raise InputError("nothing to predict", hint=_hint(signature))
    return found


def check_files(inputs: object) -> None:
    """Check that files exist before anything slow starts.

    Strings may also be texts for the model: only path objects and names with the suffix of an image
    or a table are checked.
    """
    for item in _as_list(inputs):
        if not isinstance(item, str | os.PathLike) or _is_json(os.fspath(item)):
            continue
        path = Path(item)
        is_sure = not isinstance(item, str) or path.suffix.lower() in _FILE_SUFFIXES
        if is_sure and not path.exists():
            raise _missing(path)


def _image(item: object, signature: ClientSignature) -> Instance:
    if isinstance(item, bytes):
        source, content = "bytes", item
    elif isinstance(item, str | os.PathLike):
        source, content = os.fspath(item), _read(Path(item))
    else:
        raise _mismatch(item, signature)
    is_webp = content[:4] == b"RIFF" and content[8:12] == b"WEBP"
    if not is_webp and not content.startswith(_IMAGE_STARTS):
        raise DataError(
            f"{source} is not a PNG, JPEG, GIF, BMP or WebP image",
            hint=f"{signature.model} takes {InstanceKind.IMAGE.value}",
        )
    return Instance(source, {"b64": base64.b64encode(content).decode()})


def _rows(inputs: object, signature: ClientSignature, notify: Notify) -> Iterator[Instance]:
    only = signature.only_input
    if only is not None and hasattr(inputs, "tolist"):  # an array or a Series
        inputs = inputs.tolist()
    items, numbers = _as_list(inputs), itertools.count(1)
    one = "row {}" if len(items) > 1 else "row"
    for item in items:
        if isinstance(item, Mapping):
            yield _row(one.format(next(numbers)), item, signature, strict=True)
        elif isinstance(item, str | os.PathLike):
            yield from _rows_of_text(item, signature, notify, one, numbers)
        elif hasattr(item, "to_dict") and hasattr(item, "columns"):  # a DataFrame
            frame = _with_words(item, signature)
            for row in frame.to_dict("records"):
                yield _row(f"row {next(numbers)}", row, signature, strict=False)
        elif only is not None and isinstance(item, _VALUES):
            yield _row(one.format(next(numbers)), {only: item}, signature, strict=True)
        else:
            raise _mismatch(item, signature)


def _with_words(frame: Any, signature: ClientSignature) -> Any:
    """Return a DataFrame with texts for categories of any type, as a conversion has them."""
    words = {}
    for spec in signature.inputs:
        if spec.dtype == STRING and spec.name in frame and frame[spec.name].dtype != object:
            from timonel.data.sources.arrow import as_texts  # noqa: PLC0415 - imports Arrow
            from timonel.data.sources.frames import column_of  # noqa: PLC0415

            words[spec.name] = as_texts(column_of(spec.name, frame[spec.name])).to_pylist()
    return frame.assign(**words) if words else frame


def _rows_of_text(
    item: str | os.PathLike[str],
    signature: ClientSignature,
    notify: Notify,
    one: str,
    numbers: Iterator[int],
) -> Iterator[Instance]:
    text = os.fspath(item)
    if _is_json(text):
        for row in _json_rows(text, "the given JSON", signature):
            yield _row(f"row {next(numbers)}", row, signature, strict=True)
        return
    path, only = Path(text), signature.only_input
    suffix = path.suffix.lower()
    if suffix in _CSV_SUFFIXES:
        yield from _rows_of_csv(path, signature, notify)
        return
    # Unlike pathlib, isfile accepts texts that are too long for the name of a file.
    is_file = os.path.isfile(text)  # noqa: PTH113
    if only is not None and isinstance(item, str) and suffix not in _FILE_SUFFIXES and not is_file:
        yield _row(one.format(next(numbers)), {only: text}, signature, strict=True)
        return
    if suffix not in _TABLE_SUFFIXES:
        raise _mismatch(item, signature)
    content = _read(path)
    try:
        decoded = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text: {error.reason}") from error
    for index, row in enumerate(_json_rows(decoded, str(path), signature), start=1):
        yield _row(f"{path}, row {index}", row, signature, strict=True)


def _rows_of_csv(path: Path, signature: ClientSignature, notify: Notify) -> Iterator[Instance]:
    # Arrow takes 100 ms to import: import it only to read a CSV.
    from timonel.data.sources.columns import is_missing, parse_number  # noqa: PLC0415
    from timonel.data.sources.csvfile import CsvFile  # noqa: PLC0415
    from timonel.storage.location import Location  # noqa: PLC0415

    if not path.exists():
        raise _missing(path)
    file = CsvFile(Location(path))
    if separator := file.describe_separator():
        notify(f"{path}: {separator}")
    for warning in file.text.warnings:
        notify(warning)
    floats = [spec.name for spec in signature.inputs if spec.dtype in _FLOATS]
    missing: Counter[str] = Counter()
    first_bad: dict[str, str] = {}
    for line, row in file.rows():
        values: dict[str, Any] = dict(row)
        for name in values.keys() & set(floats):
            values[name] = parse_number(row[name])
            if math.isnan(values[name]):
                missing[name] += 1
                if not is_missing(row[name]):
                    first_bad.setdefault(name, f", such as {row[name]!r} in line {line}")
        yield _row(f"{path}, line {line}", values, signature, strict=False)
    if missing:
        counts = "; ".join(
            f"{name}: {missing[name]:,}{first_bad.get(name, '')}"
            for name in floats
            if missing[name]
        )
        notify(f"{path}: {missing.total():,} cells without a number treated as missing ({counts})")


def _json_rows(text: str, origin: str, signature: ClientSignature) -> Sequence[Mapping[str, Any]]:
    try:
        value = json.loads(text)
    except ValueError as error:
        # JSON lines are a common form of many rows.
        try:
            value = [json.loads(line) for line in text.splitlines() if line.strip()]
        except ValueError:
            raise DataError(f"{origin} is not valid JSON: {error}") from error
    if isinstance(value, dict) and isinstance(value.get("instances"), list):
        value = value["instances"]
    rows = value if isinstance(value, list) else [value]
    if signature.only_input is not None:
        return [row if isinstance(row, dict) else {signature.only_input: row} for row in rows]
    if not all(isinstance(row, dict) for row in rows):
        form = ", ".join(f'"{spec.name}": ...' for spec in signature.inputs)
        raise InputError(f"{origin} must contain JSON objects", hint=f"use rows such as {{{form}}}")
    return rows


def _row(
    source: str, row: Mapping[str, Any], signature: ClientSignature, *, strict: bool
) -> Instance:
    names = [spec.name for spec in signature.inputs]
    missing = [name for name in names if name not in row]
    extra = [str(name) for name in row if name not in names]
    if missing or (strict and extra):
        problem = f"missing {', '.join(missing)}" if missing else f"unknown {', '.join(extra)}"
        raise InputError(
            f"wrong columns ({source}): {problem}",
            hint=f"the model takes {', '.join(names)}",
        )
    return Instance(
        source, {spec.name: _cell(row[spec.name], spec, source) for spec in signature.inputs}
    )


def _cell(value: Any, spec: Input, source: str) -> Any:
    try:
        converted = _convert(value, spec.dtype)
    except (ValueError, KeyError, TypeError):
        kind = "a number" if spec.dtype != "DT_BOOL" else "true or false"
        raise InputError(
            f"expected {kind} in column {spec.name}, got {value!r} ({source})",
            hint="correct or fill in the value",
        ) from None
    if _is_infinite(converted, spec.dtype):
        from timonel.data.sources.columns import why_unusable  # noqa: PLC0415 - imports Arrow

        raise InputError(
            f"column {spec.name}: {why_unusable(converted)} ({source})", hint="correct the value"
        )
    return [converted] if spec.instance_shape == (1,) and not _is_list(value) else converted


def _is_infinite(value: Any, dtype: str) -> bool:
    if dtype not in _FLOATS or not isinstance(value, int | float):
        return False
    return abs(value) == math.inf or (dtype != "DT_DOUBLE" and abs(value) > _FLOAT32_MAX)


def _convert(value: Any, dtype: str) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, bytes):
        return {"b64": base64.b64encode(value).decode()}
    if dtype == STRING:
        return value if isinstance(value, str | list | dict) else _word(value)
    if value is None and dtype in _FLOATS:
        return None  # the server knows whether the model takes missing numbers
    if value is None:
        raise ValueError("expected a value")
    if isinstance(value, int | float | list | tuple | dict):
        return value
    value = str(value)  # such as a Decimal
    if dtype in _FLOATS:
        return float(value)
    return _BOOLEANS[value.strip().lower()] if dtype == "DT_BOOL" else int(value)


def _word(value: Any) -> str:
    """Return the word of a category, as a conversion does; a missing one is empty."""
    from timonel.data.sources.arrow import text_of  # noqa: PLC0415 - imports Arrow

    return text_of(value)


def _tensors(inputs: object, signature: ClientSignature, notify: Notify) -> list[Instance]:
    if isinstance(inputs, str | os.PathLike) and not _is_json(os.fspath(inputs)):
        path = Path(inputs)
        if path.suffix.lower() in _CSV_SUFFIXES and _takes_vectors(signature):
            return list(_vectors_of_csv(path, signature, notify))
    value = _array_like(inputs, signature)
    rank = len(signature.inputs[0].shape or ())
    array = np.asarray(value, dtype=object) if signature.inputs[0].dtype == STRING else None
    depth = array.ndim if array is not None else _depth(value)
    if rank and depth == rank - 1:
        value = [value]
    elif rank and depth != rank:
        raise InputError(
            f"expected arrays of {rank - 1} dimensions, or a batch of them, got {depth} dimensions",
            hint=_hint(signature),
        )
    return [Instance(f"instance {i}", each) for i, each in enumerate(value, start=1)]


def _takes_vectors(signature: ClientSignature) -> bool:
    only = signature.inputs[0]
    return len(only.instance_shape) == 1 and only.dtype != STRING


def _vectors_of_csv(path: Path, signature: ClientSignature, notify: Notify) -> Iterator[Instance]:
    """Yield the rows of a CSV with a header, each as one vector."""
    from timonel.data.sources.csvfile import CsvFile  # noqa: PLC0415 - imports Arrow
    from timonel.storage.location import Location  # noqa: PLC0415

    only = signature.inputs[0]
    names = [name for name in CsvFile(Location(path)).peek(0)[0] if name.strip()]
    columns = tuple(Input(name, only.dtype, (-1,)) for name in names)
    for row in _rows_of_csv(path, replace(signature, inputs=columns), notify):
        yield Instance(row.source, list(row.value.values()))


def _array_like(inputs: object, signature: ClientSignature) -> Any:
    if isinstance(inputs, np.ndarray | np.generic):
        return inputs.tolist()
    if isinstance(inputs, str | os.PathLike):
        text = os.fspath(inputs)
        if not _is_json(text):
            if Path(text).suffix.lower() != ".json":
                raise _mismatch(inputs, signature)
            text = _read(Path(text)).decode(errors="replace")
        try:
            value = json.loads(text)
        except ValueError as error:
            raise DataError(f"invalid JSON: {error}") from error
        return value["instances"] if isinstance(value, dict) and "instances" in value else value
    if isinstance(inputs, list | tuple) and not any(
        isinstance(item, str | bytes | os.PathLike | Mapping) for item in inputs
    ):
        return [item.tolist() if isinstance(item, np.ndarray) else item for item in inputs]
    raise _mismatch(inputs, signature)


def _depth(value: Any) -> int:
    depth = 0
    while _is_list(value):
        depth += 1
        if not value:
            break
        value = value[0]
    return depth


def _is_list(value: object) -> bool:
    return isinstance(value, list | tuple)


def _as_list(inputs: object) -> Sequence[object]:
    return inputs if isinstance(inputs, list | tuple) else [inputs]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise _missing(path) from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error


def _is_json(text: str) -> bool:
    return text.lstrip().startswith(("{", "["))


def _missing(path: Path) -> NotFoundError:
    return NotFoundError(f"no file at {path}", hint="check the path")


def _mismatch(item: object, signature: ClientSignature) -> InputError:
    got = "an array" if hasattr(item, "shape") else type(item).__name__
    if isinstance(item, str | os.PathLike):
        got = repr(os.fspath(item))
    return InputError(
        f"{signature.model} takes {signature.kind.value}, got {got}", hint=_hint(signature)
    )


def _hint(signature: ClientSignature) -> str:
    if signature.kind is InstanceKind.IMAGE:
        return "give their paths, or their content as bytes"
    if signature.kind is InstanceKind.ROW:
        return f"give a CSV, JSON or dicts with {', '.join(i.name for i in signature.inputs)}"
    table = "a CSV, " if _takes_vectors(signature) else ""
    return f"give {table}an array or nested lists for {signature.description}"

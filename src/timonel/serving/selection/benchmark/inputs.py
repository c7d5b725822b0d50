"""Requests to compare answers on: rows of a file, or held-out examples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from timonel.errors import InputError, SpecError
from timonel.models.reference import ReferenceExample
from timonel.models.schema import Export
from timonel.serving.runtimes.samples import Sample
from timonel.serving.signature import DEFAULT_SIGNATURE, NUMPY_TYPES, STRING, Array, Signature
from timonel.storage import digest_bytes

_SINGLE, _TOGETHER = 4, 16
_MOST_BYTES = 4 << 20


def samples_in(file: Path, signatures: Mapping[str, Signature]) -> list[Sample]:
    """Return the requests in an ``.npz`` file with one array per input.

    Each row is a request to every signature with these inputs.

    Raises:
        InputError: The file cannot be read.
        SpecError: No signature has these inputs.
    """
    try:
        with np.load(file, allow_pickle=False) as content:
            arrays = {name: content[name] for name in content.files}
    except (OSError, ValueError) as error:
        raise InputError(f"expected arrays by name in {file}, got {error}") from error
    found: list[Sample] = []
    for name, signature in signatures.items():
        if arrays and arrays.keys() == signature.inputs.keys():
            typed = {key: _typed(key, array, signature) for key, array in arrays.items()}
            found += [(name, row) for row in _rows(typed, file)]
    if not found:
        wanted = "; ".join(
            f"{name} takes {', '.join(each.inputs)}"
            for name, each in signatures.items()
            if each.inputs
        )
        raise SpecError(
            f"expected the inputs of a signature in {file}, got {', '.join(arrays) or 'nothing'}",
            hint=wanted,
        )
    return found


def held_out(
    export: Export, examples: Sequence[ReferenceExample], data_root: Path | None = None
) -> list[Sample]:
    """Return held-out examples as single requests and one batch.

    The signature is ``serving_default``.
    """
    rows = list(_raw(export, examples, data_root))
    singles: list[Sample] = [(DEFAULT_SIGNATURE, row) for row in rows[:_SINGLE]]
    if len(rows) <= 1:
        return singles
    together = {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
    return [*singles, (DEFAULT_SIGNATURE, together)]


def _raw(
    export: Export, examples: Sequence[ReferenceExample], data_root: Path | None
) -> Iterator[dict[str, Array]]:
    signature = export.signatures.get(DEFAULT_SIGNATURE)
    if signature is None or export.preparation.input_kind == "tensor":
        return
    left = _MOST_BYTES
    for example in examples[:_TOGETHER]:
        if export.preparation.input_kind == "table":
            source = example.source if isinstance(example.source, Mapping) else {}
            yield {
                name: _cell(source.get(name), tensor.dtype)
                for name, tensor in signature.inputs.items()
            }
            continue
        path = data_root / example.key if data_root else Path(str(example.source or ""))
        content = path.read_bytes() if path.is_file() else b""
        left -= len(content)
        unchanged = example.digest is None or digest_bytes(content) == example.digest
        if content and unchanged and left >= 0:
            (name,) = signature.inputs
            yield {name: np.array([content], dtype=object)}


def _cell(value: Any, dtype: str) -> Array:
    if dtype == "string":
        return np.array([b"" if value is None else str(value).encode()], dtype=object)
    return np.array([float("nan") if value in {None, ""} else float(value)], dtype=np.float32)


def _typed(name: str, array: Array, signature: Signature) -> Array:
    dtype = signature.inputs[name].dtype
    if dtype == STRING:
        texts = [each.encode() if isinstance(each, str) else each for each in array.flat]
        return np.array(texts, dtype=object).reshape(array.shape)
    return array.astype(NUMPY_TYPES[dtype])


def _rows(arrays: Mapping[str, Array], file: Path) -> Iterator[dict[str, Array]]:
    sizes = {len(array) if array.ndim else 0 for array in arrays.values()}
    if len(sizes) != 1 or 0 in sizes:
        raise SpecError(f"expected as many rows of each input in {file}, got {sorted(sizes)}")
    for row in range(min(sizes.pop(), _TOGETHER)):
        yield {name: array[row : row + 1] for name, array in arrays.items()}

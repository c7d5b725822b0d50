"""Inputs of a model in ``.npz`` files: an array by input name, with a row for each example."""

from __future__ import annotations

import itertools
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt
from numpy.lib.npyio import NpzFile

from timonel.errors import InputError, SpecError
from timonel.storage.regular_files import open_regular

Arrays = Mapping[str, npt.NDArray[Any]]


def read_npz(file: Path) -> Arrays:
    """Read arrays by name, with the same number of rows."""
    try:
        # numpy.load would take a single array, too.
        with open_regular(file) as source, NpzFile(source) as loaded:
            arrays = dict(loaded)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(
            f"cannot read {file}: {getattr(error, 'strerror', None) or error}",
            hint="save arrays by input name with numpy.savez",
        ) from error
    sizes = {len(array) if array.ndim else 0 for array in arrays.values()}
    if len(sizes) != 1 or 0 in sizes:
        raise SpecError(
            f"the inputs in {file} have different numbers of rows, or none: {sorted(sizes)}"
        )
    return arrays


def rows_of(arrays: Arrays, most: int) -> Iterator[dict[str, npt.NDArray[Any]]]:
    """Yield at most ``most`` rows, each with a batch of 1."""
    for row in itertools.islice(range(len(next(iter(arrays.values())))), most):
        yield {name: array[row : row + 1] for name, array in arrays.items()}

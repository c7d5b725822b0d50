"""Inputs of a prediction in ``.npy`` and ``.npz`` files."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from timonel.errors import DataError, InputError, NotFoundError

SUFFIXES = {".npy", ".npz"}


def opened(inputs: object) -> object:
    """Return the array of an ``.npy`` file, or the rows of an ``.npz`` file as dicts.

    Other inputs are returned as they are.
    """
    if not isinstance(inputs, str | os.PathLike):
        return inputs
    path = Path(inputs)
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        return inputs
    if not path.exists():
        raise NotFoundError(f"no file at {path}", hint="check the path")
    if suffix == ".npz":
        from timonel.models.npz import read_npz  # noqa: PLC0415 - rarely needed

        arrays = read_npz(path)
        rows = zip(*arrays.values(), strict=True)
        return [dict(zip(arrays, row, strict=True)) for row in rows]
    try:
        return np.load(path, allow_pickle=False)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, EOFError) as error:
        raise DataError(
            f"{path} is not a NumPy array: {error}", hint="save it with numpy.save"
        ) from error

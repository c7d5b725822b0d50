"""Checkpoint folder: ``state.json`` and a file of concatenated arrays.

    state.json        the checkpoint document: progress, digest, types and shapes, plain data
    arrays.bin        the arrays, each starting at a multiple of 64 bytes

`flat` reads and writes ``arrays.bin``, with a CRC32C as digest; older files may have a SHA-256.
Format 1 had an ``.npz``, which needs a second checksum and a copy in memory.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from timonel.errors import CorruptError
from timonel.storage import publish_dir, read_document, verify_file, write_document
from timonel.training.worker.state import flat, tree
from timonel.training.worker.state.progress import Progress

STATE = "state.json"
FINAL = "final"
ARRAYS = "arrays.bin"
_ARRAYS_1 = "variables.npz"
_ALIGN = 64

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class FitState:
    """Complete state of a ``fit`` call, sufficient to resume it exactly.

    Attributes:
        progress: Progress of the call.
        variables: Variables of model and optimizer, in a fixed order.
        local: Values of variables that each replica updates by itself [replicas, ...].
        metrics: Variables of the epoch's metrics [replicas, ...].
        extra: Plain data and arrays by name: callbacks, random state, data position.
    """

    progress: Progress
    variables: Sequence[Array] = ()
    local: Sequence[Array] = ()
    metrics: Sequence[Array] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Checkpoint:
    """Verified checkpoint."""

    folder: Path
    state: FitState

    @property
    def progress(self) -> Progress:
        """Progress of the call."""
        return self.state.progress


def name_of(progress: Progress) -> str:
    """Return the folder name for a progress: completed epochs and steps."""
    if progress.finished:
        return FINAL
    step = f"-step-{progress.step:07d}" if progress.step else ""
    return f"epoch-{progress.next_epoch:04d}{step}"


def age(name: str) -> tuple[int, int]:
    """Return a key that sorts folder names from oldest to newest."""
    if name == FINAL:
        return (1 << 62, 0)
    epoch, _, step = name.removeprefix("epoch-").partition("-step-")
    return int(epoch), int(step or 0)


def is_name(name: str) -> bool:
    """Whether a folder name is that of a checkpoint."""
    parts = name.removeprefix("epoch-").split("-step-")
    known = name.startswith("epoch-") and len(parts) <= 2 and all(map(str.isdecimal, parts))
    return name == FINAL or known


def write(target: Path, state: FitState, metric: tuple[str, float] | None = None) -> None:
    """Publish a state as the folder ``target``.

    Args:
        target: Folder; replaced if it exists.
        state: State to save.
        metric: Name and value of the metric that selects the best checkpoint.

    Raises:
        InputError: The folder cannot be written.
        OSError: Its files cannot be written.
    """
    arrays: list[Array] = []
    content = {
        "variables": list(state.variables),
        "local": list(state.local),
        "metrics": list(state.metrics),
        "extra": dict(state.extra),
    }
    encoded = tree.encode(content, arrays)
    progress = state.progress
    with publish_dir(target, replace=True) as folder:
        digest = _write_arrays(folder / ARRAYS, arrays)
        body = {
            "epochs": list(progress.epochs),
            "history": {name: list(values) for name, values in progress.history.items()},
            "steps": progress.steps,
            "step": progress.step,
            "finished": progress.finished,
            "metric": None if metric is None else {"name": metric[0], "value": metric[1]},
            "arrays": [[array.dtype.name, list(array.shape)] for array in arrays],
            "digest": digest,
            "content": encoded,
        }
        write_document(folder / STATE, "checkpoint", body)


def read(folder: Path) -> Checkpoint:
    """Read and verify a checkpoint.

    Raises:
        NotFoundError: No such checkpoint.
        CorruptError: The checkpoint is damaged.
        FormatError: Another release wrote it.
    """
    state = read_document(folder / STATE, "checkpoint")
    try:
        return Checkpoint(
            folder, _state_of_1(folder, state) if "dtypes" in state else _state_of(folder, state)
        )
    except (KeyError, ValueError, TypeError, IndexError) as error:
        raise CorruptError(f"expected a whole checkpoint in {folder}, got {error!r}") from error


def metric_of(folder: Path) -> tuple[str, float] | None:
    """Return name and value of a checkpoint's metric, if any."""
    found = read_document(folder / STATE, "checkpoint").get("metric")
    return None if found is None else (str(found["name"]), float(found["value"]))


def _state_of(folder: Path, state: Mapping[str, Any]) -> FitState:
    path, digest = folder / ARRAYS, str(state["digest"])
    if digest.startswith(flat.PREFIX):
        arrays = _read_arrays(path, digest, state["arrays"])
    else:  # older checkpoints
        verify_file(path, digest)
        arrays = list(_read_arrays_by_sha(path, state["arrays"]))
    content = tree.decode(state["content"], arrays)
    return FitState(_progress(state), **content)


def _state_of_1(folder: Path, state: Mapping[str, Any]) -> FitState:
    """Return the state of a format 1 checkpoint.

    It has the variables at the end of an epoch.
    """
    path = folder / _ARRAYS_1
    verify_file(path, state["digest"])
    with np.load(path, allow_pickle=False) as stored:
        variables = [
            stored[f"arr_{number}"].view(dtype_named(name))
            for number, name in enumerate(state["dtypes"])
        ]
    return FitState(_progress(state), variables)


def _progress(state: Mapping[str, Any]) -> Progress:
    return Progress(
        epochs=tuple(state["epochs"]),
        history=state["history"],
        steps=state["steps"],
        finished=state["finished"],
        step=state.get("step", 0),
    )


def _write_arrays(path: Path, arrays: Sequence[Array]) -> str:
    contents = []
    for array in arrays:
        content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        contents += [content, np.zeros(-len(content) % _ALIGN, np.uint8)]
    return flat.write(path, contents)


def _read_arrays(
    path: Path, digest: str, index: Sequence[tuple[str, Sequence[int]]]
) -> list[Array]:
    arrays = []
    with flat.Reader(path, digest) as file:
        for name, shape in index:
            dtype = dtype_named(name)
            size = math.prod(shape) * dtype.itemsize
            arrays.append(file.read(size).view(dtype).reshape(tuple(shape)))
            file.read(-size % _ALIGN)
        file.check()
    return arrays


def _read_arrays_by_sha(path: Path, index: Sequence[tuple[str, Sequence[int]]]) -> Iterator[Array]:
    with path.open("rb") as file:
        for name, shape in index:
            dtype = dtype_named(name)
            size = math.prod(shape) * dtype.itemsize
            content = np.empty(size, np.uint8)
            if file.readinto(content.data) != size:
                raise CorruptError(f"expected {size} bytes more in {path}, found fewer")
            file.seek(-size % _ALIGN, os.SEEK_CUR)
            yield content.view(dtype).reshape(tuple(shape))


def dtype_named(name: str) -> np.dtype[Any]:
    """Return a dtype by name, including ml_dtypes such as bfloat16."""
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes  # noqa: PLC0415 - comes with TensorFlow, for dtypes that numpy lacks

        extension: type = getattr(ml_dtypes, name)
        return np.dtype(extension)

"""Format of a checkpoint's folder: ``state.json`` and a file of concatenated arrays.

    state.json        the checkpoint document: progress, digest, types and shapes, plain data
    arrays.bin        the arrays, each starting at a multiple of 64 bytes

`flat` reads and writes ``arrays.bin``, with a CRC32C as digest.

Plain data are numbers, strings, None, and lists, tuples and dicts of them. Values without a JSON
form become a dict with one key that begins with ``$``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from timonel.errors import CorruptError
from timonel.storage import publish_dir, read_document, write_document
from timonel.training import checkpoints
from timonel.training.checkpoints import ARRAYS, STATE
from timonel.training.worker.state import flat

Array = np.ndarray[Any, Any]
_MARK = "$"
_SCALARS = (bool, int, float, str, type(None))


class NotPlainError(TypeError):
    """A value is not plain data."""


def encode(value: Any, arrays: list[Array]) -> Any:
    """Encode ``value`` as JSON types, appending its arrays to ``arrays``; or NotPlainError."""
    if type(value) in _SCALARS:
        return value
    if isinstance(value, np.ndarray | np.generic):
        if value.dtype.hasobject or value.dtype.names:
            raise NotPlainError(f"expected an array of numbers, got {value.dtype}")
        arrays.append(np.asarray(value))
        kind = "array" if isinstance(value, np.ndarray) else "number"
        return {_MARK + kind: len(arrays) - 1}
    if type(value) is list:
        return [encode(item, arrays) for item in value]
    if type(value) is tuple:
        return {_MARK + "tuple": [encode(item, arrays) for item in value]}
    if type(value) is dict:
        return _encode_dict(value, arrays)
    raise NotPlainError(f"expected plain data, got {type(value).__name__}")


def decode(value: Any, arrays: Sequence[Array]) -> Any:
    """Decode the result of `encode`."""
    if isinstance(value, list):
        return [decode(item, arrays) for item in value]
    if not isinstance(value, Mapping):
        return value
    if len(value) != 1 or not next(iter(value)).startswith(_MARK):
        return {key: decode(item, arrays) for key, item in value.items()}
    return _decode_marked(*next(iter(value.items())), arrays)


def _decode_marked(kind: str, content: Any, arrays: Sequence[Array]) -> Any:
    if kind == "$array":
        return arrays[content]
    if kind == "$number":
        return arrays[content][()]
    if kind == "$tuple":
        return tuple(decode(item, arrays) for item in content)
    return {decode(key, arrays): decode(item, arrays) for key, item in content}


def _encode_dict(value: Mapping[Any, Any], arrays: list[Array]) -> Any:
    if all(type(key) is str for key in value) and not any(key[:1] == _MARK for key in value):
        return {key: encode(item, arrays) for key, item in value.items()}
    pairs = [[encode(key, arrays), encode(item, arrays)] for key, item in value.items()]
    return {_MARK + "dict": pairs}


@dataclass(frozen=True)
class Progress:
    """Progress of a ``fit`` call."""

    epochs: tuple[int, ...] = ()  # numbers of the completed epochs, from 0
    history: Mapping[str, Sequence[Any]] = field(default_factory=dict)  # of Keras
    steps: int = 0  # optimizer steps of this and all earlier calls
    finished: bool = False  # the call has returned
    step: int = 0  # completed steps of the next epoch

    @property
    def next_epoch(self) -> int:
        """Number of the epoch to continue with."""
        return self.epochs[-1] + 1 if self.epochs else 0

    @property
    def checkpoint_name(self) -> str:
        """Name of the checkpoint's folder."""
        return checkpoints.name_of(self.next_epoch, self.step, finished=self.finished)

    @property
    def steps_before_epoch(self) -> int:
        """Optimizer steps at the start of the epoch to continue with."""
        return self.steps - self.step

    def within(self, step: int) -> Progress:
        """Return the progress after ``step`` steps of the next epoch."""
        return replace(self, step=step, steps=self.steps_before_epoch + step)

    def after(self, epoch: int, logs: Mapping[str, Any], steps: int) -> Progress:
        """Return the progress after ``epoch`` ended, with ``steps`` steps in total."""
        grown = {**self.history, **{name: () for name in logs if name not in self.history}}
        history = {
            name: (*values, plain(logs[name])) if name in logs else tuple(values)
            for name, values in grown.items()
        }
        return Progress((*self.epochs, epoch), history, steps)

    def as_finished(self) -> Progress:
        """Return the progress after the call returned."""
        return replace(self, finished=True, steps=self.steps_before_epoch, step=0)


def plain(value: Any) -> Any:
    """Convert a metric's value to JSON types."""
    array = np.asarray(value)
    return array.tolist() if array.dtype.isbuiltin == 1 else array.astype(np.float64).tolist()


_ALIGN = 64


@dataclass(frozen=True)
class FitState:
    """Complete state of a ``fit`` call, sufficient to resume it exactly."""

    progress: Progress
    variables: Sequence[Array] = ()  # of model and optimizer, in a fixed order
    local: Sequence[Array] = ()  # variables that each replica updates by itself [replicas, ...]
    metrics: Sequence[Array] = ()  # of the epoch [replicas, ...]
    extra: Mapping[str, Any] = field(default_factory=dict)  # plain data and arrays


@dataclass(frozen=True)
class Checkpoint:
    """Verified checkpoint."""

    folder: Path
    state: FitState

    @property
    def progress(self) -> Progress:
        """Progress of the call."""
        return self.state.progress


def write(target: Path, state: FitState, metric: tuple[str, float] | None = None) -> None:
    """Publish a state as the folder ``target``; ``metric`` is the one that selects the best."""
    arrays: list[Array] = []
    content = {
        "variables": list(state.variables),
        "local": list(state.local),
        "metrics": list(state.metrics),
        "extra": dict(state.extra),
    }
    encoded = encode(content, arrays)
    with publish_dir(target, replace=True) as folder:
        digest = _write_arrays(folder / ARRAYS, arrays)
        body = {
            **{each.name: getattr(state.progress, each.name) for each in fields(Progress)},
            "metric": None if metric is None else {"name": metric[0], "value": metric[1]},
            "arrays": [[_name_of(array.dtype), list(array.shape)] for array in arrays],
            "digest": digest,
            "content": encoded,
        }
        write_document(folder / STATE, "checkpoint", body)


def read(folder: Path) -> Checkpoint:
    """Read and verify a checkpoint."""
    state = read_document(folder / STATE, "checkpoint")
    try:
        arrays = _read_arrays(folder / ARRAYS, str(state["digest"]), state["arrays"])
        known = {each.name: state[each.name] for each in fields(Progress)}
        progress = Progress(**{**known, "epochs": tuple(state["epochs"])})
        return Checkpoint(folder, FitState(progress, **decode(state["content"], arrays)))
    except (KeyError, ValueError, TypeError, IndexError) as error:
        raise CorruptError(f"the checkpoint in {folder} is damaged: {error!r}") from error


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


def _name_of(dtype: np.dtype[Any]) -> str:
    # Names lack sizes of texts, units of dates and byte orders; `str` does not tell ml_dtypes.
    return dtype.name if dtype.isbuiltin else dtype.str


def dtype_named(name: str) -> np.dtype[Any]:
    """Return a dtype by name, including ml_dtypes such as bfloat16."""
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes  # noqa: PLC0415 - comes with TensorFlow, for dtypes that numpy lacks

        extension: type = getattr(ml_dtypes, name)
        return np.dtype(extension)

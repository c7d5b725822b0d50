"""Checkpoints at the ends of epochs: one folder per epoch of each numbered ``fit`` call.

<job folder>/checkpoints/fit-000/epoch-0003/
    state.json        the checkpoint document: epoch, history, digest, what the arrays are
    variables.npz     the model's and the optimizer's variables
<job folder>/checkpoints/fit-000/final/

A folder appears whole or not at all, and its digest is verified before it is used. Reading a
variable may take all tasks of a job (its replicas are aggregated), so every task reads and the
chief alone writes.
"""

from __future__ import annotations

import io
import logging
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from timonel.errors import CorruptError, FormatError, NotFoundError, TimonelError
from timonel.storage import (
    digest_bytes,
    publish_dir,
    read_document,
    verify_file,
    write_document,
)
from timonel.storage.atomic import sweep, unwritable

_STATE = "state.json"
_ARRAYS = "variables.npz"
_FINAL = "final"
KEEP = 2

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Progress:
    """How far a ``fit`` call has come.

    Attributes:
        epochs: The numbers of the epochs that are done, counting from 0.
        history: What Keras' ``History`` holds of them.
        steps: Optimizer steps of this and all earlier calls.
        finished: The call has returned; there is nothing left to train.
    """

    epochs: tuple[int, ...] = ()
    history: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    steps: int = 0
    finished: bool = False

    @property
    def next_epoch(self) -> int:
        """The epoch to go on with."""
        return self.epochs[-1] + 1 if self.epochs else 0

    def after(self, epoch: int, logs: Mapping[str, Any], steps: int) -> Progress:
        """Return the progress once ``epoch`` ended with ``logs``."""
        grown = {**self.history, **{name: () for name in logs if name not in self.history}}
        history = {
            name: (*values, plain(logs[name])) if name in logs else tuple(values)
            for name, values in grown.items()
        }
        return Progress((*self.epochs, epoch), history, steps)

    def as_finished(self) -> Progress:
        """Return the progress once the call has returned."""
        return replace(self, finished=True)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was verified."""

    folder: Path
    progress: Progress
    arrays: tuple[np.ndarray[Any, Any], ...]


class Checkpoints:
    """The checkpoints of one job.

    Args:
        root: The folder they are in.
        writes: Whether this task writes them; the others only take part.
        progress: A file for the number of the last step that was saved.
    """

    def __init__(self, root: Path, *, writes: bool, progress: Path) -> None:
        self.root = root
        self._writes = writes
        self._progress = progress

    def save(self, fit: int, variables: Sequence[Any], progress: Progress) -> Path | None:
        """Save the state of ``fit`` call number ``fit``; return its folder where one was written.

        Args:
            fit: The number of the call.
            variables: Keras or TensorFlow variables, always in the same order.
            progress: How far the call has come.
        """
        arrays = [np.asarray(variable.numpy()) for variable in variables]
        self._progress.write_text(str(progress.steps))
        if not self._writes:
            return None
        name = _FINAL if progress.finished else f"epoch-{progress.epochs[-1]:04d}"
        target = self._folder(fit) / name
        try:
            _write(target, arrays, progress)
        except OSError as error:
            raise unwritable(target, error) from None
        self._thin_out(fit)
        return target

    def latest(self, fit: int) -> Checkpoint | None:
        """Return the newest checkpoint of a call that is whole, or None."""
        for folder in self._newest_first(fit):
            try:
                return _read(folder)
            except (CorruptError, FormatError, NotFoundError) as error:
                logger.warning("the checkpoint %s is left aside: %s", folder, error)
        return None

    def tidy(self) -> None:
        """Remove what a chief that was killed has left half-written."""
        if self._writes:
            for folder in self.root.glob("fit-*"):
                sweep(folder)

    def _thin_out(self, fit: int) -> None:
        for folder in list(self._newest_first(fit))[KEEP:]:
            shutil.rmtree(folder, ignore_errors=True)

    def _newest_first(self, fit: int) -> Iterable[Path]:
        folder = self._folder(fit)
        epochs = sorted(folder.glob("epoch-*"), reverse=True)
        final = folder / _FINAL
        return [final, *epochs] if final.is_dir() else epochs

    def _folder(self, fit: int) -> Path:
        return self.root / f"fit-{fit:03d}"


def restore(variables: Sequence[Any], arrays: Sequence[np.ndarray[Any, Any]]) -> None:
    """Assign what was saved.

    Raises:
        TimonelError: The variables are not those that were saved.
    """
    here = [(tuple(variable.shape), _dtype(variable)) for variable in variables]
    there = [(array.shape, array.dtype) for array in arrays]
    if here != there:
        raise TimonelError(
            "expected the model that was checkpointed before the restart, got one with other "
            f"variables ({len(here)} instead of {len(there)}, or of other shapes)",
            hint="a script must build the same models in the same order each time it is started",
        )
    for variable, array in zip(variables, arrays, strict=True):
        variable.assign(array)


def plain(value: Any) -> Any:
    """Return a metric's value as JSON can hold it."""
    array = np.asarray(value)
    return array.tolist() if array.dtype.isbuiltin == 1 else array.astype(np.float64).tolist()


def _write(target: Path, arrays: Sequence[np.ndarray[Any, Any]], progress: Progress) -> None:
    content = _pack(arrays)
    with publish_dir(target, replace=True) as folder:
        (folder / _ARRAYS).write_bytes(content)
        state = {
            "epochs": list(progress.epochs),
            "history": {name: list(values) for name, values in progress.history.items()},
            "steps": progress.steps,
            "finished": progress.finished,
            "dtypes": [array.dtype.name for array in arrays],
            "digest": digest_bytes(content),
        }
        write_document(folder / _STATE, "checkpoint", state)


def _read(folder: Path) -> Checkpoint:
    state = read_document(folder / _STATE, "checkpoint")
    path = folder / _ARRAYS
    verify_file(path, state["digest"])
    progress = Progress(
        epochs=tuple(state["epochs"]),
        history=state["history"],
        steps=state["steps"],
        finished=state["finished"],
    )
    return Checkpoint(folder, progress, _unpack(path, state["dtypes"]))


def _pack(arrays: Sequence[np.ndarray[Any, Any]]) -> bytes:
    # numpy's own format knows no bfloat16 and no float8: their bits are stored as integers.
    buffer = io.BytesIO()
    np.savez(buffer, *[_as_bits(array) for array in arrays])
    return buffer.getvalue()


def _unpack(path: Path, dtypes: Sequence[str]) -> tuple[np.ndarray[Any, Any], ...]:
    with np.load(path, allow_pickle=False) as stored:
        return tuple(
            stored[f"arr_{number}"].view(_dtype_named(name)) for number, name in enumerate(dtypes)
        )


def _as_bits(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if array.dtype.isbuiltin == 1:
        return array
    return array.view(f"u{array.dtype.itemsize}")


def _dtype(variable: Any) -> np.dtype[Any]:
    dtype = variable.dtype
    return _dtype_named(getattr(dtype, "name", dtype))


def _dtype_named(name: str) -> np.dtype[Any]:
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes  # noqa: PLC0415 - comes with TensorFlow, for what numpy lacks

        extension: type = getattr(ml_dtypes, name)
        return np.dtype(extension)

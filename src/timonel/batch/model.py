"""Run a model on whole batches, in a process of its own.

A batch that fails is divided until only the rows at fault are left, which become failures. A batch
that kills the process, such as one that needs too much memory, is divided in the same way after
the restart.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from timonel.batch.plan import PredictionSpec
from timonel.batch.readers import Failure, Rows
from timonel.batch.tables import to_input
from timonel.errors import InputError, ModelError
from timonel.processes.cores import usable_cores
from timonel.serving.client.connection import is_image
from timonel.serving.inference.signature_check import check_shapes, drop_column
from timonel.serving.runtimes.child import ChildRuntime
from timonel.serving.selection.choice import check_permission
from timonel.serving.settings.base import EVERY_MODEL
from timonel.serving.settings.runtime import AUTO, PythonSettings, RuntimeSettings
from timonel.serving.signature import Array, Signature
from timonel.serving.status import Code, StatusError
from timonel.units import counted

Outputs = Mapping[str, Array]

_RUNTIME = "timonel.serving.selection.auto:AutoRuntime"
_MAX_CRASHES = 40
_RESTART_S = 120.0
_POLL_S = 0.1
_IMAGE_ROWS, _MAX_ROWS = 32, 1024
_BATCH_BYTES = 1 << 20


@dataclass(frozen=True)
class Predicted:
    """Predictions for rows of one batch.

    Args:
        outputs: The model's outputs, [B, ...] each, by name.
    """

    rows: Rows
    outputs: Outputs


class BatchModel:
    """A version in a process of its own. Thread-safe; a context manager that ends the process."""

    def __init__(self, job: PredictionSpec, log: Path) -> None:
        self._name = name = job.model
        path = Path(job.path)
        # As many batches at the same time as cores, with one thread each: no operation waits.
        self._threads = math.ceil(usable_cores())
        settings = RuntimeSettings(
            name=AUTO,
            frozen_graphs=True,
            intra_op_threads=1,
            allow_ops={EVERY_MODEL: job.allow_ops},
            op_libraries=job.op_libraries,
        )
        runtime = ChildRuntime(_RUNTIME, threads=self._threads, log=log)
        try:
            check_permission(path, name, PythonSettings())
            self._model = runtime.load(path, settings)
        except StatusError as error:
            raise ModelError(f"cannot load {name}: {error.message}") from error
        try:
            self.signature = check_signature(self._model.signatures, job.signature, name)
        except BaseException:
            self._model.close()
            raise
        self._crashes = 0
        self._recovery = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process."""
        self._model.close()

    @property
    def threads(self) -> int:
        """Number of batches that are computed at the same time."""
        return self._threads

    def predict(self, rows: Rows) -> tuple[list[Predicted], list[Failure]]:
        """Predict rows; return the predictions in order, and the rows that failed."""
        if not len(rows):
            return [], []
        restarts = self._model.restarts
        try:
            return [Predicted(rows, self._run(rows))], []
        except StatusError as error:
            if error.code is Code.UNAVAILABLE:
                return self._after_crash(rows, restarts)
            return self._divided(rows, error)

    def _divided(self, rows: Rows, error: StatusError) -> tuple[list[Predicted], list[Failure]]:
        if len(rows) == 1:
            return [], [(rows.keys[0], error.message)]
        middle = len(rows) // 2
        first, failed = self.predict(rows.slice(0, middle))
        second, also_failed = self.predict(rows.slice(middle, len(rows)))
        return first + second, failed + also_failed

    def _after_crash(self, rows: Rows, restarts: int) -> tuple[list[Predicted], list[Failure]]:
        """Repeat a batch alone, because another one may have caused the crash."""
        with self._recovery:
            self._await_restart(restarts)
            restarts = self._model.restarts
            try:
                return [Predicted(rows, self._run(rows))], []
            except StatusError as error:
                if error.code is not Code.UNAVAILABLE:
                    return self._divided(rows, error)
                reason = error
            self._crashes += 1
            if self._crashes > _MAX_CRASHES:
                raise ModelError(
                    f"the process of {self._name} died {self._crashes} times: {reason.message}",
                    hint="check the model with 'timonel models check', or use a smaller "
                    "--batch-size",
                )
            self._await_restart(restarts)
        return self._divided(rows, reason)

    def _await_restart(self, restarts: int) -> None:
        """Wait until the process has restarted more than this number of times."""
        deadline = time.monotonic() + _RESTART_S
        while self._model.restarts <= restarts:
            if time.monotonic() > deadline:
                outage = self._model.outage
                reason = "it does not start" if outage is None else outage.message
                raise ModelError(f"the process of {self._name} does not restart: {reason}")
            time.sleep(_POLL_S)

    def _run(self, rows: Rows) -> Outputs:
        signature = self.signature
        inputs = {
            name: to_input(column, signature.inputs[name], name)
            for name, column in rows.columns.items()
        }
        shaped = check_shapes(signature, inputs)
        outputs = self._model.run(signature.name, shaped)
        changed = next((name for name in inputs if inputs[name] is not shaped[name]), None)
        if changed is not None:
            outputs = drop_column(outputs, inputs[changed].shape)
        for name, array in outputs.items():
            if array.ndim == 0 or len(array) != len(rows):
                raise ModelError(
                    f"output {name} of {self._name} has the shape {list(array.shape)} for "
                    f"{counted(len(rows), 'row')}",
                    hint="batch prediction needs one prediction per row",
                )
        return outputs


def default_batch_size(signature: Signature) -> int:
    """Return the rows per batch: 32 images, else as many rows as fill 1 MiB."""
    if any(is_image(name, spec.dtype) for name, spec in signature.inputs.items()):
        return _IMAGE_ROWS
    size = sum(
        4 * math.prod(abs(n) for n in (spec.shape or ())[1:]) for spec in signature.inputs.values()
    )
    rows = max(1, _BATCH_BYTES // max(size, 1))
    return min(_MAX_ROWS, 1 << (rows.bit_length() - 1))


def check_signature(known: Mapping[str, Signature], name: str, model: str) -> Signature:
    """Return a signature that takes batches of rows."""
    if name not in known or not known[name].inputs:
        usable = ", ".join(sorted(key for key, each in known.items() if each.inputs)) or "none"
        raise InputError(
            f"{model} has no signature {name} with inputs", hint=f"its signatures: {usable}"
        )
    found = known[name]
    fixed = {spec.shape[0] for spec in found.inputs.values() if spec.shape} - {-1}
    if fixed - {1}:
        raise InputError(
            f"{model} takes batches of exactly {min(fixed - {1})} rows",
            hint="export it with an unknown batch size",
        )
    if any(spec.shape == () for spec in found.inputs.values()):
        raise InputError(f"signature {name} of {model} takes no batches of rows")
    return found

"""Interfaces of runtimes and loaded models: run signatures on arrays.

Arrays have the dtype of the signature. Strings are object arrays of ``bytes``. This module does not
import TensorFlow; data types have the names of its protos.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path

import numpy as np

from timonel.serving.settings import RuntimeSettings
from timonel.serving.signature import (
    NUMPY_TYPES,
    Array,
    Signature,
)
from timonel.serving.status import StatusError


class LoadedModel(abc.ABC):
    """A version in memory.

    `run` is safe to call from several threads at once. `close` is called once, while no call of
    `run` is in progress; no other method is called after it.
    """

    signatures: Mapping[str, Signature]
    has_hooks = False
    """Whether hooks wrap the model, so that recorded requests may not fit it."""

    @abc.abstractmethod
    def run(
        self, signature: str, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None
    ) -> dict[str, Array]:
        """Compute the outputs of a signature.

        Args:
            signature: A key of `signatures`.
            inputs: Exactly the signature's inputs. The model itself checks shapes.
            outputs: Names of the requested outputs; None for all of them.

        Raises:
            StatusError: The model rejected the input or failed.
        """

    @property
    def platform(self) -> str:
        """Platform name in the Open Inference Protocol: ``<project>_<format>``."""
        return "custom"

    @property
    def restarts(self) -> int:
        """Number of restarts of the process that computes the model."""
        return 0

    @property
    def outage(self) -> StatusError | None:
        """Error that makes a loaded model unavailable; None if it is available.

        A model that runs in this process never has one.
        """
        return None

    @property
    def queued(self) -> int:
        """Number of requests that wait to be computed. May block for a moment."""
        return 0

    @abc.abstractmethod
    def close(self) -> None:
        """Free the memory."""


class DeclaringModel(LoadedModel):
    """A version that declares how it may be batched and called concurrently.

    Other versions are batched with evidence from their export, or if the user assumes it.
    """

    batchable: bool
    """Whether rows of different requests may be computed in one batch."""
    slots: int
    """Number of concurrent calls of `run`; further calls wait."""


class Pending(Future[dict[str, Array]]):
    """Future of a request's outputs."""

    compute_s: float | None = None
    """Seconds the model took to compute, set when the request is done; None if unknown."""

    def set_exception(self, exception: BaseException | None) -> None:
        """Store an error; a `StatusError` is copied without its traceback.

        The traceback's frames refer to the request, and often to this future. Such a cycle would
        keep the inputs in memory until the next full garbage collection.
        """
        if isinstance(exception, StatusError):
            exception = StatusError(exception.code, exception.message)
        super().set_exception(exception)


def refused(error: Exception) -> Pending:
    """Return a failed future for a request that is not computed."""
    pending = Pending()
    pending.compute_s = 0.0
    pending.set_exception(error)
    return pending


class ScheduledModel(LoadedModel):
    """A version that schedules its requests itself, and rejects those whose deadline has passed.

    `close` may be called while cancelled requests are still being computed.
    """

    def run(
        self,
        signature: str,
        inputs: Mapping[str, Array],
        outputs: Sequence[str] | None = None,
    ) -> dict[str, Array]:
        """Compute the outputs of a signature; see `submit`."""
        return self.submit(signature, inputs, outputs).result()

    @abc.abstractmethod
    def submit(
        self,
        signature: str,
        inputs: Mapping[str, Array],
        outputs: Sequence[str] | None = None,
        deadline: float | None = None,
    ) -> Future[dict[str, Array]]:
        """Start computing the outputs of a signature.

        Args:
            signature: A key of `signatures`.
            inputs: Exactly the signature's inputs.
            outputs: Names of the requested outputs; None for all of them.
            deadline: When the answer becomes useless, in seconds of `time.monotonic`.

        Returns:
            The future outputs, or a `StatusError`; a `Pending` if the compute time is known. A
            request that is cancelled before it starts is never computed.
        """

    def allocate(self, shape: Sequence[int], dtype: str) -> Array:
        """Return an uninitialized array that `submit` takes with minimal copying.

        Args:
            shape: The sizes.
            dtype: A key of `NUMPY_TYPES` other than ``DT_STRING``.

        Raises:
            StatusError: Out of memory.
        """
        return np.empty(shape, NUMPY_TYPES[dtype])


class WrappedModel(ScheduledModel):
    """Base of models that wrap another one, and report its status."""

    _model: LoadedModel

    @property
    def platform(self) -> str:
        """Platform name of the inner model."""
        return self._model.platform

    @property
    def restarts(self) -> int:
        """Number of restarts of the process that computes the inner model."""
        return self._model.restarts

    @property
    def outage(self) -> StatusError | None:
        """Error that makes the inner model unavailable; None if it is available."""
        return self._model.outage

    @property
    def queued(self) -> int:
        """Number of requests that wait to be computed by the inner model."""
        return self._model.queued


class Runtime(abc.ABC):
    """A kind of runtime, without a loaded model. Thread-safe."""

    name: str

    @abc.abstractmethod
    def load(self, path: Path, settings: RuntimeSettings) -> LoadedModel:
        """Load the version in the folder ``path``; blocks until it can run.

        Raises:
            StatusError: The folder holds no model that this runtime can load.
        """

    @abc.abstractmethod
    def prepare(self) -> None:
        """Import what loading needs, which may take seconds; called before loads. Idempotent.

        Raises:
            StatusError: The import failed.
        """

    def start(self) -> None:  # noqa: B027 - only runtimes in other processes have something to start
        """Start to prepare in the background, if possible; returns at once. Idempotent."""

    def close(self) -> None:  # noqa: B027 - most runtimes have nothing to release
        """Release the resources of `prepare`; called once, after all models closed."""

"""What a compute runtime is: it loads a version and runs its signatures on arrays.

Arrays have the dtype of the signature. Strings are object arrays of ``bytes``. This module knows
no TensorFlow; the names of data types are those of its protos.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import NamedTuple

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

    `run` is safe to call from several threads at once. `close` is called once, when no call of
    `run` is under way; nothing is called after it.
    """

    signatures: Mapping[str, Signature]
    has_hooks = False
    """Whether something is put around it, so that requests kept of the model may not fit."""
    is_steady = False
    """Whether it is known that a run takes as long whatever the values are: it has no loops."""

    @abc.abstractmethod
    def run(
        self, signature: str, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None
    ) -> dict[str, Array]:
        """Compute the outputs of a signature.

        Args:
            signature: A key of `signatures`.
            inputs: Exactly the signature's inputs. Shapes are checked by the model itself.
            outputs: Names of the outputs wanted; none for all of them.

        Raises:
            StatusError: The model refused the input or failed.
        """

    @property
    def platform(self) -> str:
        """What it is, as the Open Inference Protocol names that: ``<project>_<format>``."""
        return "custom"

    @property
    def restarts(self) -> int:
        """How often what computes it was lost and started again."""
        return 0

    @property
    def outage(self) -> StatusError | None:
        """Why it answers nothing at present, though it is loaded; none while it does answer.

        A model that lives and dies with this process has none.
        """
        return None

    @abc.abstractmethod
    def close(self) -> None:
        """Free the memory."""


class Pending(Future[dict[str, Array]]):
    """The outputs of a request, when they are there."""

    compute_s: float | None = None
    """Seconds that the model itself took, known when the request is done; none if nobody told."""

    def set_exception(self, exception: BaseException | None) -> None:
        """Store an error; of a `StatusError` a copy without its traceback.

        The traceback's frames refer to the request, and often to this future. Such a cycle would
        keep the inputs until the next full garbage collection.
        """
        if isinstance(exception, StatusError):
            exception = StatusError(exception.code, exception.message)
        super().set_exception(exception)


def refused(error: Exception) -> Pending:
    """Return the future of a request that is not computed."""
    pending = Pending()
    pending.compute_s = 0.0
    pending.set_exception(error)
    return pending


class Asked(NamedTuple):
    """What is asked of a `ScheduledModel`: what its `submit` takes.

    Args:
        signature: A key of its signatures.
        inputs: Exactly the signature's inputs.
        outputs: Names of the outputs wanted; none for all of them.
        deadline: When the answer is of no use any more, in seconds of `time.monotonic`.
    """

    signature: str
    inputs: Mapping[str, Array]
    outputs: Sequence[str] | None = None
    deadline: float | None = None


class ScheduledModel(LoadedModel):
    """A version that decides itself when it computes a request, and so keeps to deadlines.

    `close` may be called while requests that were cancelled are still computed.
    """

    @abc.abstractmethod
    def run(
        self,
        signature: str,
        inputs: Mapping[str, Array],
        outputs: Sequence[str] | None = None,
        deadline: float | None = None,
    ) -> dict[str, Array]:
        """Compute the outputs of a signature.

        Args:
            signature: A key of `signatures`.
            inputs: Exactly the signature's inputs.
            outputs: Names of the outputs wanted; none for all of them.
            deadline: When the answer is of no use any more, in seconds of `time.monotonic`.

        Raises:
            StatusError: The model refused or failed, has no room for more, or time was over.
        """

    @abc.abstractmethod
    def submit(
        self,
        signature: str,
        inputs: Mapping[str, Array],
        outputs: Sequence[str] | None = None,
        deadline: float | None = None,
    ) -> Future[dict[str, Array]]:
        """Begin what `run` does, and do not wait for it.

        Returns:
            What `run` would return or raise; a `Pending` where it is known how long that took. A
            request that is cancelled before it is computed never is.
        """

    def submit_all(self, requests: Sequence[Asked]) -> list[Future[dict[str, Array]]]:
        """Begin what `submit` does for several requests that have come at the same moment.

        Returns:
            The same as `submit`, in their order; what it would raise is what its future raises.
        """
        return [_submitted(self, request) for request in requests]

    def allocate(self, shape: Sequence[int], dtype: str) -> Array:
        """Return an array, with any content, that `submit` takes with as few copies as can be.

        Args:
            shape: Its sizes.
            dtype: A key of `NUMPY_TYPES` other than ``DT_STRING``.

        Raises:
            StatusError: There is no memory.
        """
        return np.empty(shape, NUMPY_TYPES[dtype])


def _submitted(model: ScheduledModel, request: Asked) -> Future[dict[str, Array]]:
    try:
        return model.submit(*request)
    except Exception as error:  # noqa: BLE001 - is the answer of whoever waits for it
        return refused(error)


class WrappedModel(ScheduledModel):
    """A version with something put around it: how it fares is what the version inside tells."""

    _model: LoadedModel

    @property
    def platform(self) -> str:
        """What the model is."""
        return self._model.platform

    @property
    def restarts(self) -> int:
        """How often what computes it was lost and started again."""
        return self._model.restarts

    @property
    def outage(self) -> StatusError | None:
        """Why the model answers nothing at present."""
        return self._model.outage


class Runtime(abc.ABC):
    """A way to compute. Instances hold no model and are safe to share between threads."""

    name: str

    @abc.abstractmethod
    def load(self, path: Path, settings: RuntimeSettings) -> LoadedModel:
        """Load the version in the folder ``path``; blocks until it can run.

        Raises:
            StatusError: The folder holds no model that this runtime can load.
        """

    @abc.abstractmethod
    def prepare(self) -> None:
        """Import what loading needs; called once before the first load, may take seconds.

        Raises:
            StatusError: It cannot.
        """

    def close(self) -> None:  # noqa: B027 - few have anything to give back
        """Give back what `prepare` took; called once, when nothing is loaded any more."""

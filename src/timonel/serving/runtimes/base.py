"""What a compute runtime is: it loads a version and runs its signatures on arrays.

Arrays have the dtype of the signature. Strings are object arrays of ``bytes``. This module knows
no TensorFlow; the names of data types are those of its protos.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from timonel.serving.config import RuntimeSettings
from timonel.serving.status import StatusError

Array = NDArray[Any]
DEFAULT_SIGNATURE = "serving_default"
STRING = "DT_STRING"

NUMPY_TYPES: Mapping[str, np.dtype[Any]] = {
    "DT_FLOAT": np.dtype(np.float32),
    "DT_DOUBLE": np.dtype(np.float64),
    "DT_HALF": np.dtype(np.float16),
    "DT_BFLOAT16": np.dtype(ml_dtypes.bfloat16),
    "DT_INT8": np.dtype(np.int8),
    "DT_INT16": np.dtype(np.int16),
    "DT_INT32": np.dtype(np.int32),
    "DT_INT64": np.dtype(np.int64),
    "DT_UINT8": np.dtype(np.uint8),
    "DT_UINT16": np.dtype(np.uint16),
    "DT_UINT32": np.dtype(np.uint32),
    "DT_UINT64": np.dtype(np.uint64),
    "DT_BOOL": np.dtype(np.bool_),
    "DT_COMPLEX64": np.dtype(np.complex64),
    "DT_COMPLEX128": np.dtype(np.complex128),
    STRING: np.dtype(object),
}
"""The array type of every data type that crosses the wire."""

DTYPE_NAMES: Mapping[np.dtype[Any], str] = {dtype: name for name, dtype in NUMPY_TYPES.items()}


@dataclass(frozen=True)
class TensorSpec:
    """An input or output of a signature.

    Args:
        tensor: The tensor's name inside the model.
        dtype: The data type's proto name, such as ``DT_FLOAT``.
        shape: The declared sizes, -1 where any will do; none if even the rank is open.
    """

    tensor: str
    dtype: str
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Signature:
    """A way to call a model.

    Args:
        name: The key clients give.
        inputs: The inputs by the names clients give.
        outputs: The outputs by name.
        method_name: The proto's method name.
        defaults: Values of inputs that a client may leave out.
    """

    name: str
    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]
    method_name: str = ""
    defaults: Mapping[str, Array] = field(default_factory=dict)


class LoadedModel(abc.ABC):
    """A version in memory.

    `run` is safe to call from several threads at once. `close` is called once, when no call of
    `run` is under way; nothing is called after it.
    """

    signatures: Mapping[str, Signature]

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

    def when_failed(self, tell: Callable[[StatusError], None]) -> None:  # noqa: B027 - few can
        """Have ``tell`` called, once and from any thread, should it become unable to run for good.

        A model that lives and dies with this process never is.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Free the memory."""


class ScheduledModel(LoadedModel):
    """A version that decides itself when it computes a request, and so keeps to deadlines."""

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
            What `run` would return or raise. A request that is cancelled before it is computed
            never is.
        """


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

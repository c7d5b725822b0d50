"""Interfaces of runtimes and loaded models: run signatures on arrays.

Arrays have the dtype of the signature. Strings are object arrays of ``bytes``. This module does not
import TensorFlow; data types have the names of its protos.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from timonel.serving.settings.runtime import RuntimeSettings
from timonel.serving.signature import Array, Signature
from timonel.serving.status import StatusError


class LoadedModel(abc.ABC):
    """A version in memory.

    `run` is safe to call from several threads at once. `close` is called once, while no call of
    `run` is in progress; no other method is called after it.
    """

    signatures: Mapping[str, Signature]

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
        """Error that makes a loaded model unavailable; None if it is available."""
        return None

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


class Runtime(abc.ABC):
    """A kind of runtime, without a loaded model. Thread-safe."""

    name: str

    @abc.abstractmethod
    def load(self, path: Path, settings: RuntimeSettings) -> LoadedModel:
        """Load the version in the folder ``path``; blocks until it can run.

        Raises:
            StatusError: The folder holds no model that this runtime can load.
        """


@dataclass(frozen=True)
class VersionFolder:
    """A version to load from a local folder; its origin is a path or a URI."""

    model: str
    number: int
    origin: str
    folder: Path

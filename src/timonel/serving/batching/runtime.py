"""A runtime that batches requests to its versions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from timonel.serving.batching.observation import Observer
from timonel.serving.batching.wrapping import batched, batcher_for
from timonel.serving.runtimes.base import LoadedModel, Runtime
from timonel.serving.runtimes.threaded import scheduled
from timonel.serving.settings import RuntimeSettings
from timonel.serving.settings.batching import BatchingSettings


class BatchingRuntime(Runtime):
    """Runtime decorator that adds batching to models.

    All versions share one set of threads.

    Args:
        runtime: The runtime that loads and computes.
        batching: The batching settings, which also determine the threads.
        observer: Returns the observer for batches of the version in a folder.
        threads: Concurrent requests per version without batching.

    Raises:
        StatusError: The number of threads is not positive.
    """

    def __init__(
        self,
        runtime: Runtime,
        batching: BatchingSettings,
        observer: Callable[[Path], Observer] | None = None,
        threads: int = 2,
    ) -> None:
        self.name = runtime.name
        self._runtime = runtime
        self._batching = batching
        self._batcher = batcher_for(batching)
        self._observer = observer
        self._threads = threads

    def prepare(self) -> None:
        """Import the modules needed for loading."""
        self._runtime.prepare()

    def load(self, path: Path, settings: RuntimeSettings) -> LoadedModel:
        """Load the version in ``path``, and test which requests may be batched."""
        observer = None if self._observer is None else self._observer(path)
        model = self._runtime.load(path, settings)
        together = batched(model, self._batching, observer, batcher=self._batcher, version=path)
        return scheduled(together, self._threads)

    def close(self) -> None:
        """Release the runtime's resources."""
        self._runtime.close()

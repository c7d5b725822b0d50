"""A runtime whose versions are computed in batches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from timonel.serving.batching.observation import Observer
from timonel.serving.batching.wrapping import Submitter, batched, batcher_for
from timonel.serving.runtimes.base import LoadedModel, Runtime
from timonel.serving.runtimes.threaded import scheduled
from timonel.serving.settings import RuntimeSettings
from timonel.serving.settings.batching import BatchingSettings


class BatchingRuntime(Runtime):
    """Puts batching around what another runtime loads; all versions share one set of threads.

    Args:
        runtime: What loads and computes.
        batching: Which batching; the threads are made by it.
        observer: Returns who is told of the batches of the version in a folder.
        threads: Requests that one version computes at the same time without batching.

    Raises:
        StatusError: The parameters ask for no threads.
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
        """Import what loading needs."""
        self._runtime.prepare()

    def load(self, path: Path, settings: RuntimeSettings) -> LoadedModel:
        """Load the version in ``path``, and find out what may be put together."""
        observer = None if self._observer is None else self._observer(path)
        model = self._runtime.load(path, settings)
        together = batched(
            model,
            self._batching,
            observer,
            batcher=self._batcher,
            version=path,
            submitter=Submitter.LOOP,
        )
        return scheduled(together, self._threads)

    def close(self) -> None:
        """Give back what the runtime took."""
        self._runtime.close()

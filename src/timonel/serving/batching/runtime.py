"""Add batching to loaded versions, and to runtimes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from timonel.serving.batching.batched_model import BatchingModel
from timonel.serving.batching.batcher import Batcher
from timonel.serving.batching.eligibility import eligible
from timonel.serving.batching.policy import AdaptivePolicy, BatchingPolicy, ParameterPolicy
from timonel.serving.batching.queue import Observer
from timonel.serving.batching.tfserving_parameters import check_threads, parameters_of_version
from timonel.serving.runtimes.base import DeclaringModel, LoadedModel, Runtime
from timonel.serving.runtimes.threaded import scheduled
from timonel.serving.settings import RuntimeSettings
from timonel.serving.settings.batching import (
    AdaptiveBatching,
    BatchingParameters,
    BatchingSettings,
    NoBatching,
    cores,
)

_LOG = logging.getLogger(__name__)


def batcher_for(settings: BatchingSettings) -> Batcher:
    """Return the threads that all versions of a process share.

    Raises:
        StatusError: The number of threads is not positive.
    """
    if isinstance(settings, BatchingParameters):
        check_threads(settings)
        return Batcher(settings.num_batch_threads, settings.thread_pool_name)
    slots = settings.slots if isinstance(settings, AdaptiveBatching) else 0
    return Batcher(slots or cores())


def batched(
    model: LoadedModel,
    settings: BatchingSettings,
    observer: Observer | None = None,
    *,
    batcher: Batcher | None = None,
    version: Path | None = None,
) -> LoadedModel:
    """Add batching to a version, if configured.

    Otherwise the version is returned unchanged. The model is not run.

    Args:
        model: The loaded version. Closed if this fails, otherwise owned by the result.
        settings: The batching settings.
        observer: Called for each batch.
        batcher: The threads; created if None.
        version: The version's folder, which may contain its own parameters.

    Raises:
        StatusError: The version cannot be loaded with these parameters.
    """
    if isinstance(settings, NoBatching):
        return model
    if isinstance(model, DeclaringModel):
        if not model.batchable and isinstance(settings, BatchingParameters):
            # BatchingParameters batch all requests, whether batchable or not.
            return model
        batcher = batcher or Batcher(model.slots)
    try:
        policy = _policy(model, settings, version)
        if policy is None:
            return model
        return BatchingModel(model, policy, batcher or batcher_for(settings), observer)
    except BaseException:
        model.close()
        raise


def _policy(
    model: LoadedModel,
    settings: AdaptiveBatching | BatchingParameters,
    version: Path | None,
) -> BatchingPolicy | None:
    if isinstance(settings, AdaptiveBatching):
        found = eligible(model, settings, version)
        if found.signatures:
            what = f"batches requests to {', '.join(sorted(found.signatures))}"
        else:
            what = "computes each request alone"
        _LOG.info("%s %s: %s", version or "a version", what, found.reason)
        return AdaptivePolicy(model.signatures, settings, found.signatures)
    if settings.per_model and version is not None:
        own = parameters_of_version(version, settings)
        return None if own is None else ParameterPolicy(own)
    return ParameterPolicy(settings)


class BatchingRuntime(Runtime):
    """Runtime decorator that adds batching to models, by the settings of each load.

    All versions share one set of threads.

    Args:
        runtime: The runtime that loads and computes.
        batching: The batching settings that determine the threads.
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
        self._batcher = batcher_for(batching)
        self._observer = observer
        self._threads = threads

    def prepare(self) -> None:
        """Import the modules needed for loading."""
        self._runtime.prepare()

    def load(self, path: Path, settings: RuntimeSettings) -> LoadedModel:
        """Load the version in ``path``."""
        self._runtime.prepare()
        observer = None if self._observer is None else self._observer(path)
        model = self._runtime.load(path, settings)
        together = batched(model, settings.batching, observer, batcher=self._batcher, version=path)
        return scheduled(together, self._threads)

    def close(self) -> None:
        """Release the runtime's resources."""
        self._runtime.close()

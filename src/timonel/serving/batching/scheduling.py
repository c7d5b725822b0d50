"""Schedule the requests of loaded versions: in batches where configured, else one by one."""

from __future__ import annotations

import logging
from pathlib import Path

from timonel.serving.batching.eligibility import eligible
from timonel.serving.batching.policy import AdaptivePolicy, BatchingPolicy, ParameterPolicy
from timonel.serving.batching.request import Observer
from timonel.serving.batching.scheduled_model import ScheduledModel
from timonel.serving.batching.tfserving_parameters import parameters_of_version
from timonel.serving.runtimes.base import DeclaringModel, LoadedModel
from timonel.serving.settings.batching import (
    AdaptiveBatching,
    BatchingParameters,
    BatchingSettings,
    NoBatching,
    cores,
)

_LOG = logging.getLogger(__name__)
_NO_BATCHING = NoBatching()


def scheduled(
    model: LoadedModel,
    settings: BatchingSettings = _NO_BATCHING,
    observer: Observer | None = None,
    *,
    threads: int = 2,
    version: Path | None = None,
) -> ScheduledModel:
    """Add threads to a version, and batching if configured. The model is not run.

    Args:
        model: The loaded version. Closed if this fails, otherwise owned by the result.
        settings: The batching settings.
        observer: Called for each batch.
        threads: Concurrent requests, if neither the version nor the settings say.
        version: The version's folder, which may contain its own parameters.

    Raises:
        StatusError: The version cannot be loaded with these parameters.
    """
    try:
        policy, name, threads = _plan(model, settings, threads, version)
    except BaseException:
        model.close()
        raise
    if isinstance(model, DeclaringModel):
        threads = model.slots
    return ScheduledModel(model, policy, threads, name, observer)


def _plan(
    model: LoadedModel, settings: BatchingSettings, threads: int, version: Path | None
) -> tuple[BatchingPolicy, str, int]:
    """Return a version's policy, and the name and the number of its threads."""
    if isinstance(settings, AdaptiveBatching):
        found = eligible(model, settings, version)
        names = ", ".join(sorted(found.signatures))
        what = f"batches requests to {names}" if names else "computes each request alone"
        _LOG.info("%s %s: %s", version or "a version", what, found.reason)
        policy = AdaptivePolicy(
            model.signatures, found.signatures, settings.max_rows, settings.max_queued
        )
        return policy, "batch_threads", settings.slots or cores()
    # Parameters batch all requests, whether the code declares these batchable or not.
    refuses = isinstance(model, DeclaringModel) and not model.batchable
    if isinstance(settings, BatchingParameters) and not refuses:
        own = settings if version is None else parameters_of_version(version, settings)
        if own is not None:
            return ParameterPolicy(own), own.thread_pool_name, own.num_batch_threads
    return AdaptivePolicy(model.signatures), "model", threads

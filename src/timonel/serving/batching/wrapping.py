"""Add batching to a loaded version."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from timonel.serving.batching.batched_model import BatchingModel
from timonel.serving.batching.observation import Observer
from timonel.serving.batching.policy import AdaptivePolicy, ParameterPolicy, Policy
from timonel.serving.batching.tfserving_parameters import check_threads, parameters_of_version
from timonel.serving.batching.threads import Batcher
from timonel.serving.runtimes.base import LoadedModel
from timonel.serving.runtimes.declaring import DeclaringModel
from timonel.serving.runtimes.samples import rows_of_signatures, samples_of
from timonel.serving.settings.batching import (
    AdaptiveBatching,
    BatchingParameters,
    BatchingSettings,
    NoBatching,
    cores,
)
from timonel.serving.signature import Array


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
    samples: Mapping[str, Mapping[str, Array]] | None = None,
) -> LoadedModel:
    """Add batching to a version, if configured.

    Otherwise the version is returned unchanged. Adaptive batching runs each signature a few times
    here, to test whether its rows are independent.

    Args:
        model: The loaded version. Closed if this fails, otherwise owned by the result.
        settings: The batching settings.
        observer: Called for each batch.
        batcher: The threads; created if None.
        version: The version's folder, which may contain its own parameters.
        samples: Inputs known to be valid, by signature; by default those of the version's warm-up
            requests.

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
        policy = _policy(model, settings, version, samples or {})
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
    samples: Mapping[str, Mapping[str, Array]],
) -> Policy | None:
    if isinstance(settings, AdaptiveBatching):
        if not samples and version is not None:
            samples = rows_of_signatures(samples_of(version), model.signatures)
        return AdaptivePolicy(model, settings, samples)
    if settings.per_model and version is not None:
        own = parameters_of_version(version, settings)
        return None if own is None else ParameterPolicy(own)
    return ParameterPolicy(settings)

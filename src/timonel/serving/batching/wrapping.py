"""Puts batching around a version that was loaded."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from pathlib import Path

from timonel.serving.batching.batched_model import BatchingModel
from timonel.serving.batching.observation import Observer
from timonel.serving.batching.parameters import check_threads, parameters_of_version
from timonel.serving.batching.policy import AdaptivePolicy, ParameterPolicy, Policy
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


class Submitter(Enum):
    """Who submits requests to a version."""

    BUSY = "busy"  # has other things to do, and must not be held up
    WAITING = "waiting"  # waits for this version alone
    LOOP = "loop"  # an event loop, which has many requests in a turn


def batcher_for(settings: BatchingSettings) -> Batcher:
    """Return the threads that all versions of a process share.

    Raises:
        StatusError: The parameters ask for no threads.
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
    submitter: Submitter = Submitter.BUSY,
) -> LoadedModel:
    """Return a version with batching around it; itself if it is not to be batched.

    Adaptive batching runs each signature a few times here, to see what it may put together.

    Args:
        model: What was loaded. Closed if this fails, else owned by what is returned.
        settings: Which batching.
        observer: Told of every batch.
        batcher: The threads; its own if none are given.
        version: The version's folder, where its own parameters may lie.
        samples: Inputs that its signatures are known to take, by signature; by default those of
            the version's warm-up requests.
        submitter: Who submits requests, and may be made to compute what takes less time than to
            queue it, under adaptive batching.

    Raises:
        StatusError: The version cannot be loaded with these parameters.
    """
    if isinstance(settings, NoBatching):
        return model
    if isinstance(model, DeclaringModel):
        if not model.batchable and isinstance(settings, BatchingParameters):
            # These put everything together that comes.
            return model
        batcher = batcher or Batcher(model.slots)
    try:
        # One that declares how many calls it takes at once must not be called besides.
        submitter = Submitter.BUSY if isinstance(model, DeclaringModel) else submitter
        at_once = submitter is not Submitter.BUSY
        policy = _policy(model, settings, version, samples or {}, at_once=at_once)
        if policy is None:
            return model
        threads = batcher or batcher_for(settings)
        gathers = submitter is Submitter.LOOP
        return BatchingModel(model, policy, threads, observer, gathers=gathers)
    except BaseException:
        model.close()
        raise


def _policy(
    model: LoadedModel,
    settings: AdaptiveBatching | BatchingParameters,
    version: Path | None,
    samples: Mapping[str, Mapping[str, Array]],
    *,
    at_once: bool,
) -> Policy | None:
    if isinstance(settings, AdaptiveBatching):
        if not samples and version is not None:
            samples = rows_of_signatures(samples_of(version), model.signatures)
        return AdaptivePolicy(model, settings, samples, at_once=at_once)
    if settings.per_model and version is not None:
        own = parameters_of_version(version, settings)
        return None if own is None else ParameterPolicy(own)
    return ParameterPolicy(settings)

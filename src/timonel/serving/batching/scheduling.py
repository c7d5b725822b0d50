"""Schedule the requests of loaded versions: in batches where configured, else one by one.

Only signatures whose rows are known to be independent are batched without parameters. Nothing is
guessed from running the model: a batch of dependent rows gives a client the results of others, and
three rows that do not influence each other do not prove that no rows do.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import NamedTuple

from timonel.models.row_evidence import read_row_evidence
from timonel.serving.batching.policy import AdaptivePolicy, BatchingPolicy, ParameterPolicy
from timonel.serving.batching.queue import Observer
from timonel.serving.batching.scheduled_model import ScheduledModel
from timonel.serving.batching.tfserving_parameters import parameters_of_version
from timonel.serving.runtimes.base import DeclaringModel, LoadedModel
from timonel.serving.settings.base import EVERY_MODEL
from timonel.serving.settings.batching import (
    AdaptiveBatching,
    BatchingParameters,
    BatchingSettings,
    NoBatching,
    cores,
)
from timonel.serving.signature import Signature

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
        threads: Concurrent requests, if neither the version nor the settings say.
        version: The version's folder, which may contain its own parameters.
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


class Eligibility(NamedTuple):
    """Signatures to batch, and the reason in one line."""

    signatures: frozenset[str]
    reason: str


def eligible(model: LoadedModel, settings: AdaptiveBatching, version: Path | None) -> Eligibility:
    """Return the signatures of a version that may be batched."""
    may_batch, reason = _rows_are_independent(model, settings, version)
    if not may_batch:
        return Eligibility(frozenset(), reason)
    found = frozenset(name for name, each in model.signatures.items() if is_open(each))
    return Eligibility(found, reason if found else "no signature has an open first dimension")


def is_open(signature: Signature) -> bool:
    """Return whether all inputs and outputs have an open first dimension."""
    specs = [*signature.inputs.values(), *signature.outputs.values()]
    return bool(signature.inputs) and all(
        spec.encoding == "name" and spec.shape is not None and spec.shape[:1] == (-1,)
        for spec in specs
    )


def _rows_are_independent(
    model: LoadedModel, settings: AdaptiveBatching, version: Path | None
) -> tuple[bool, str]:
    if isinstance(model, DeclaringModel):
        return model.batchable, f"its code declares batchable = {model.batchable}"
    if EVERY_MODEL in settings.assumed:
        return True, "--batching was given for it"
    if version is None:
        return False, "it has no folder with evidence"
    found = read_row_evidence(version)
    return found.independent, found.reason

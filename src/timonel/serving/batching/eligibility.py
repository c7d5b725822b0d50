"""Decide which signatures of a version are batched: those whose rows are known to be independent.

Nothing is guessed from running the model: a batch of dependent rows gives a client the results of
others, and three rows that do not influence each other do not prove that no rows do.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from timonel.models.row_evidence import read_row_evidence
from timonel.serving.runtimes.base import DeclaringModel, LoadedModel
from timonel.serving.settings.base import EVERY_MODEL
from timonel.serving.settings.batching import AdaptiveBatching
from timonel.serving.signature import Signature


class Eligibility(NamedTuple):
    """Signatures to batch, and the reason in one line."""

    signatures: frozenset[str]
    reason: str


def eligible(model: LoadedModel, settings: AdaptiveBatching, version: Path | None) -> Eligibility:
    """Return the signatures of a version that may be batched.

    Args:
        model: The loaded version.
        settings: The settings for its model.
        version: The version's folder; None if it has none.
    """
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

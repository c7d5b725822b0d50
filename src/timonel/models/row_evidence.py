"""Evidence that the rows of a version's batches are independent: derive it, read it.

A server that batches without it may give a client the results of others. Without TensorFlow.
"""

from __future__ import annotations

from pathlib import Path

from timonel.errors import NotFoundError, TimonelError
from timonel.models.runtime_choice import identity_of
from timonel.models.schema import (
    VERSION_FILE,
    CheckResult,
    Export,
    RowEvidence,
    VersionDocument,
)


def row_evidence(export: Export, check: CheckResult | None, saved_model: str) -> RowEvidence:
    """Derive the evidence from what the export and its check have found.

    Args:
        check: The result of the check; None without one.
    """
    objection = _objection(export, check)
    compared = 0 if check is None else check.rows_alone
    return RowEvidence(
        independent=objection is None,
        reason=objection
        or "its layers compute each row from itself, and "
        f"{compared} held-out inputs had the same results alone as in batches",
        saved_model=saved_model,
    )


def _objection(export: Export, check: CheckResult | None) -> str | None:
    layers = export.model.may_mix_rows
    if layers is None:
        return "its layers were not examined"
    if layers:
        others = f" and {len(layers) - 1} more" if len(layers) > 1 else ""
        return f"{layers[0]}{others} may mix the rows of a batch"
    if check is None or not check.rows_alone:
        return "no held-out inputs were computed both alone and in batches"
    if check.rows_mixed:
        return (
            f"{check.rows_mixed} of {check.rows_alone} held-out inputs had other results in a "
            "batch than alone"
        )
    return None


def read_row_evidence(version: Path) -> RowEvidence:
    """Return the evidence in a version's folder; rows count as dependent without any."""
    try:
        found = VersionDocument.read(version / VERSION_FILE, "model-version").rows
    except NotFoundError:
        found = None
    except TimonelError as error:
        return _none(str(error))
    if found is None:
        return _none("it has no evidence that rows of a batch are independent")
    if found.independent and found.saved_model != identity_of(version):
        return _none("its files were changed after the export")
    return found


def _none(reason: str) -> RowEvidence:
    return RowEvidence(independent=False, reason=reason, saved_model="")

"""The state of a server as JSON: statuses, metadata and models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from timonel.serving.inference import conversion
from timonel.serving.manager.catalogue import Catalogue, Metadata
from timonel.serving.manager.plan import VersionStatus


def status_view(statuses: Sequence[VersionStatus]) -> dict[str, Any]:
    """Return the status of a model's versions."""
    return conversion.as_json(conversion.status_response(tuple(statuses)))


def metadata_view(metadata: Metadata) -> dict[str, Any]:
    """Return the signatures of a version."""
    spec = {"name": metadata.name, "signature_name": "", "version": str(metadata.version)}
    signatures = conversion.as_json(conversion.signature_map(metadata))
    return {"model_spec": spec, "metadata": {"signature_def": signatures}}


def models_view(catalogue: Catalogue) -> dict[str, Any]:
    """Return the list of all models, an extension of TensorFlow Serving's API."""
    return {
        "models": [
            {
                "name": name,
                "versions": [_listed(catalogue, name, each) for each in catalogue.known(name)],
            }
            for name in catalogue.names
        ]
    }


def _listed(catalogue: Catalogue, name: str, status: VersionStatus) -> dict[str, Any]:
    # A loaded version that cannot answer keeps the state that TensorFlow Serving would report, with
    # the reason added.
    reason = catalogue.outage(name, status.number) or status
    servable = catalogue.loaded(name).get(status.number)
    return {
        "version": str(status.number),
        "state": status.state.value,
        "status": {"error_code": reason.code.name, "error_message": reason.message},
        "labels": servable.labels if servable else (),
    }

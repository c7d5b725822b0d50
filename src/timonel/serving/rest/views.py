"""What a server knows of its models, as the JSON that TensorFlow Serving prints. Pure.

That JSON is its protos with every field written out. It is made by hand here, so that a server
without gRPC, whose runtime is another one, need not import TensorFlow for the protos' sake.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from timonel.serving.core import DataPlane, Metadata
from timonel.serving.runtimes.base import Signature, TensorSpec
from timonel.serving.versions import VersionStatus


def status_view(statuses: Sequence[VersionStatus]) -> dict[str, Any]:
    """Return the answer to a question for a model's status."""
    return {
        "model_version_status": [
            {
                "version": str(status.number),
                "state": status.state.value,
                "status": {"error_code": status.code.name, "error_message": status.message},
            }
            for status in statuses
        ]
    }


def metadata_view(metadata: Metadata) -> dict[str, Any]:
    """Return the answer to a question for a version's signatures."""
    signatures = {name: _signature(each) for name, each in metadata.signatures.items()}
    return {
        "model_spec": {
            "name": metadata.name,
            "signature_name": "",
            "version": str(metadata.version),
        },
        "metadata": {"signature_def": {"signature_def": signatures}},
    }


def models_view(plane: DataPlane) -> dict[str, Any]:
    """Return the list of all models, which TensorFlow Serving does not have."""
    return {
        "models": [
            {
                "name": name,
                "versions": [
                    {
                        "version": str(status.number),
                        "state": status.state.value,
                        "labels": plane.labels(name, status.number),
                    }
                    for status in statuses
                ],
            }
            for name, statuses in plane.models().items()
        ]
    }


def _signature(signature: Signature) -> dict[str, Any]:
    return {
        "inputs": _tensors(signature.inputs),
        "outputs": _tensors(signature.outputs),
        "method_name": signature.method_name,
        "defaults": _defaults(signature),
    }


def _tensors(specs: Mapping[str, TensorSpec]) -> dict[str, Any]:
    return {
        name: {
            "dtype": spec.dtype,
            "tensor_shape": {
                "dim": [{"size": str(size), "name": ""} for size in spec.shape or ()],
                "unknown_rank": spec.shape is None,
            },
            "name": spec.tensor,
        }
        for name, spec in specs.items()
    }


def _defaults(signature: Signature) -> dict[str, Any]:
    if not signature.defaults:
        return {}
    # Rare, and a TensorProto has too many fields to write out by hand.
    from timonel.serving.protos import tensor_json  # noqa: PLC0415 - imports TensorFlow

    return {name: tensor_json(value) for name, value in signature.defaults.items()}

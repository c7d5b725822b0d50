"""Model status and metadata in TensorFlow Serving's JSON format. Pure.

The format has every field of the protos written out. It is built by hand, so that a server without
gRPC whose runtime is not TensorFlow need not import TensorFlow for the protos.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from google.protobuf import json_format, text_format

from timonel.serving.inference import DataPlane, Metadata
from timonel.serving.manager.model_config import config_from
from timonel.serving.manager.plan import VersionStatus
from timonel.serving.settings import ModelSettings
from timonel.serving.signature import Signature, TensorSpec
from timonel.serving.status import Code

_CREDENTIALS = re.compile(r"(?<=://)[^/@]*(?=@)")


def status_view(statuses: Sequence[VersionStatus]) -> dict[str, Any]:
    """Return the status of a model's versions."""
    return {
        "model_version_status": [
            {
                "version": str(status.number),
                "state": status.state.value,
                "status": _reason(status),
            }
            for status in statuses
        ]
    }


def metadata_view(metadata: Metadata) -> dict[str, Any]:
    """Return the signatures of a version."""
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
    """Return the list of all models, an extension of TensorFlow Serving's API."""
    return {
        "models": [
            {
                "name": name,
                "versions": [_listed(plane, name, status) for status in statuses],
            }
            for name, statuses in plane.models().items()
        ]
    }


def _listed(plane: DataPlane, name: str, status: VersionStatus) -> dict[str, Any]:
    outage = plane.outage(name, status.number)
    # A loaded version that cannot answer keeps the state that TensorFlow Serving would report, with
    # the reason added.
    reason = _reason(status) if outage is None else _failure(outage.code, outage.message)
    return {
        "version": str(status.number),
        "state": status.state.value,
        "status": reason,
        "labels": plane.labels(name, status.number),
    }


def config_text(models: Sequence[ModelSettings], *, as_text: bool) -> bytes:
    """Return the configured models as a ModelServerConfig.

    A server can be started with the text form, except for credentials within URLs, which are
    masked.

    Args:
        models: The configured models.
        as_text: Whether to write a text proto instead of JSON.
    """
    shown = [
        model.model_copy(update={"base_path": _CREDENTIALS.sub("***", model.base_path)})
        for model in models
    ]
    config = config_from(shown)
    if as_text:
        return text_format.MessageToString(config, as_utf8=True).encode()
    return orjson.dumps(json_format.MessageToDict(config, preserving_proto_field_name=True))


def _reason(status: VersionStatus) -> dict[str, str]:
    return _failure(status.code, status.message)


def _failure(code: Code, message: str) -> dict[str, str]:
    return {"error_code": code.name, "error_message": message}


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
    from timonel.serving.inference.conversion import tensor_json  # noqa: PLC0415 - imports TensorFlow

    return {name: tensor_json(value) for name, value in signature.defaults.items()}

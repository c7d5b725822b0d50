"""What a server tells of itself and of its models, as plain values for both forms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from timonel._version import __version__
from timonel.serving.core import DataPlane
from timonel.serving.runtimes.base import DEFAULT_SIGNATURE, TensorSpec
from timonel.serving.servables import ModelSpec
from timonel.serving.status import Code, StatusError
from timonel.serving.v2.tensors import datatype_named
from timonel.serving.versions import State, VersionStatus

_EXTENSIONS: Final = ("binary_tensor_data",)
_READY: Final = "READY"
_UNAVAILABLE: Final = "UNAVAILABLE"
_STATES: Mapping[State, str] = {
    State.START: "LOADING",
    State.LOADING: "LOADING",
    State.AVAILABLE: _READY,
    State.UNLOADING: "UNLOADING",
    State.END: _UNAVAILABLE,
}


def server_view() -> dict[str, Any]:
    """Return what the server is."""
    return {"name": "timonel", "version": __version__, "extensions": list(_EXTENSIONS)}


def model_view(plane: DataPlane, spec: ModelSpec) -> dict[str, Any]:
    """Return what a version's default signature takes and gives.

    Raises:
        StatusError: It is not loaded, or has no default signature.
    """
    metadata = plane.metadata(spec)
    signature = metadata.signatures.get(DEFAULT_SIGNATURE)
    if signature is None:
        raise StatusError(
            Code.FAILED_PRECONDITION,
            f"expected model {metadata.name} to have the signature {DEFAULT_SIGNATURE}, it has "
            f"{', '.join(sorted(metadata.signatures)) or 'none'}; requests name one by the "
            "parameter signature_name",
        )
    serving = [s.number for s in plane.status(metadata.name) if s.state is State.AVAILABLE]
    return {
        "name": metadata.name,
        "versions": [str(number) for number in sorted(serving)],
        "platform": metadata.platform,
        "inputs": _tensors(signature.inputs),
        "outputs": _tensors(signature.outputs),
    }


def is_ready(plane: DataPlane, spec: ModelSpec) -> bool:
    """Tell whether a version can answer now.

    Raises:
        StatusError: There is no such model, version or label.
    """
    try:
        version = plane.metadata(spec).version
    except StatusError as error:
        known = plane.models().get(spec.name)
        if error.code is not Code.NOT_FOUND or known is None:
            raise
        if spec.version is not None and all(s.number != spec.version for s in known):
            raise
        return False
    return plane.outage(spec.name, version) is None


def index_view(plane: DataPlane, *, only_ready: bool = False) -> list[dict[str, str]]:
    """Return the state of each version of each model.

    Args:
        plane: What knows them.
        only_ready: Whether to leave out those that cannot answer.
    """
    index = [
        entry
        for name, statuses in plane.models().items()
        for entry in (
            [_entry(plane, name, status) for status in statuses]
            or [{"name": name, "version": "", "state": _UNAVAILABLE, "reason": "no version yet"}]
        )
    ]
    return [entry for entry in index if entry["state"] == _READY] if only_ready else index


def _entry(plane: DataPlane, name: str, status: VersionStatus) -> dict[str, str]:
    outage = plane.outage(name, status.number)
    state, reason = _STATES[status.state], status.message
    if outage is not None:
        state, reason = _UNAVAILABLE, outage.message
    return {"name": name, "version": str(status.number), "state": state, "reason": reason}


def _tensors(specs: Mapping[str, TensorSpec]) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "datatype": datatype_named(spec.dtype),
            # The protocol has no word for an open rank.
            "shape": [-1] if spec.shape is None else list(spec.shape),
        }
        for name, spec in specs.items()
    ]

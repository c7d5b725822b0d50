"""Signatures of a SavedModel as values. Without TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from timonel.serving.protos.messages import saved_model_pb2, types_pb2
from timonel.serving.signature import Array, Signature, TensorSpec


def signature_of(
    name: str, proto: Any, value_of: Callable[[Any], Array] | None = None
) -> Signature:
    """Convert a ``SignatureDef``.

    Args:
        name: The signature's key for clients.
        proto: The proto.
        value_of: Converts a ``TensorProto`` to an array; without it, default values are omitted.
    """
    return Signature(
        name=name,
        inputs={key: _spec(info) for key, info in sorted(proto.inputs.items())},
        outputs={key: _spec(info) for key, info in sorted(proto.outputs.items())},
        method_name=proto.method_name,
        defaults={key: value_of(each) for key, each in proto.defaults.items()} if value_of else {},
    )


def signatures_in(version: Path, tags: tuple[str, ...]) -> dict[str, Signature]:
    """Return the SavedModel's signatures in ``version``, without default values of inputs.

    Empty if the model has no graph with these tags.
    """
    model = saved_model_pb2.SavedModel.FromString((version / "saved_model.pb").read_bytes())
    for graph in model.meta_graphs:
        if set(graph.meta_info_def.tags) == set(tags):
            return {name: signature_of(name, each) for name, each in graph.signature_def.items()}
    return {}


def _spec(info: Any) -> TensorSpec:
    shape = info.tensor_shape
    return TensorSpec(
        tensor=info.name,
        dtype=types_pb2.DataType.Name(info.dtype),
        shape=None if shape.unknown_rank else tuple(dim.size for dim in shape.dim),
    )

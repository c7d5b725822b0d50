"""A SavedModel's signatures as values. Without TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from timonel.serving.protos.messages import saved_model_pb2, types_pb2
from timonel.serving.signature import Array, Signature, TensorSpec


def signature_of(
    name: str, proto: Any, value_of: Callable[[Any], Array] | None = None
) -> Signature:
    """Return what a ``SignatureDef`` says.

    Args:
        name: The key clients give.
        proto: The proto.
        value_of: Makes an array of a ``TensorProto``; without it, default values are left out.
    """
    return Signature(
        name=name,
        inputs={key: _spec(info) for key, info in sorted(proto.inputs.items())},
        outputs={key: _spec(info) for key, info in sorted(proto.outputs.items())},
        method_name=proto.method_name,
        defaults={key: value_of(each) for key, each in proto.defaults.items()} if value_of else {},
    )


def signatures_in(version: Path, tags: tuple[str, ...]) -> dict[str, Signature]:
    """Return the signatures of the SavedModel in ``version``, without default values of inputs.

    There are none if it has no graph with these tags.
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

"""Check ranks in front of kernels that abort the process when given another rank. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from timonel.models.protos import types_pb2

_RANKS: Final[Mapping[str, Mapping[int, int]]] = {
    "Conv2D": {0: 4},
    "DepthwiseConv2dNative": {0: 4},
    "Conv3D": {0: 5},
    "MaxPool3D": {0: 5},
    "CombinedNonMaxSuppression": {1: 3},
    "LSTMBlockCell": {0: 2, 1: 2, 2: 2},
}
"""Kernels of TensorFlow that abort, and the rank that some of their inputs must have. Found by
giving tensors of each rank to the operations of common models."""


def add_rank_checks(meta_graph: Any) -> None:
    """Add checks to a ``MetaGraphDef`` if requests may bring any rank to its graph.

    Where all inputs have a rank, shape inference has found wrong ones when the model was made.
    """
    graph = meta_graph.graph_def
    nodes = {node.name: node for node in graph.node}
    infos = [info for each in meta_graph.signature_def.values() for info in each.inputs.values()]
    if any(_takes_any_rank(nodes.get(info.name.partition(":")[0])) for info in infos):
        _add(graph.node, "")
        for function in graph.library.function:
            _add(function.node_def, ":output:0")


def _takes_any_rank(node: Any) -> bool:
    # Early releases of TensorFlow wrote an unknown shape as that of a scalar.
    return node is not None and not ("shape" in node.attr and node.attr["shape"].shape.dim)


def _add(nodes: Any, output: str) -> None:
    """Add checks to the nodes of a graph or function, where ``output`` ends a tensor's name."""
    for node in list(nodes):
        for place, rank in _RANKS.get(node.op, {}).items():
            check = nodes.add(op="EnsureShape", name=f"{node.name}/rank_{place}")
            check.device = node.device
            check.input.append(node.input[place])
            check.attr["T"].type = node.attr["T"].type if "T" in node.attr else types_pb2.DT_FLOAT
            for _ in range(rank):
                check.attr["shape"].shape.dim.add(size=-1)
            node.input[place] = check.name + output

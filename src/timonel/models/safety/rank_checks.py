"""Check ranks in front of kernels that abort the process when given another rank. Pure."""

from __future__ import annotations

from typing import Any, Final

_RANKS: Final = {"Conv2D": 4, "DepthwiseConv2dNative": 4, "Conv3D": 5, "MaxPool3D": 5}
"""Kernels of TensorFlow that abort, and the rank of their first input. Found by giving tensors of
each rank to the operations of common models."""


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
        if node.op in _RANKS:
            check = nodes.add(op="EnsureShape", name=f"{node.name}/rank", device=node.device)
            check.input.append(node.input[0])
            check.attr["T"].CopyFrom(node.attr["T"])
            for _ in range(_RANKS[node.op]):
                check.attr["shape"].shape.dim.add(size=-1)
            node.input[0] = check.name + output

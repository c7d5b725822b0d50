"""Private API of TensorFlow: frozen graphs, the optimizer of graphs, and types of operations.

TensorFlow has no public way to turn the variables of a function into constants. The tests of
conversions fail when a release changes these names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorflow.core.framework import types_pb2
from tensorflow.core.protobuf import config_pb2, meta_graph_pb2
from tensorflow.python.framework import op_def_registry
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2
from tensorflow.python.grappler import tf_optimizer

_PASSES = ("pruning", "constfold", "arithmetic", "dependency", "pruning", "constfold")


def frozen(function: Any) -> Any:
    """Return a concrete function with constants in place of variables, and its calls inlined."""
    return convert_variables_to_constants_v2(function)


def optimized(graph: Any, keep: Sequence[str]) -> Any:
    """Return a GraphDef with folded constants, without what the nodes ``keep`` do not need."""
    config = config_pb2.ConfigProto()
    config.graph_options.rewrite_options.optimizers.extend(_PASSES)
    config.graph_options.rewrite_options.min_graph_nodes = -1
    meta = meta_graph_pb2.MetaGraphDef(graph_def=graph)
    meta.collection_def["train_op"].node_list.value.extend(keep)
    return tf_optimizer.OptimizeGraph(config, meta)


def takes_resource(operation: str) -> bool:
    """Return whether an operation takes a variable or a table; functions that pass one do not."""
    found = op_def_registry.get(operation)
    return found is not None and any(a.type == types_pb2.DT_RESOURCE for a in found.input_arg)


def wide_outputs(operation: str) -> list[int]:
    """Return the places of outputs that are int64 for all inputs, such as that of Where."""
    outputs = op_def_registry.get(operation).output_arg
    return [place for place, each in enumerate(outputs) if each.type == types_pb2.DT_INT64]

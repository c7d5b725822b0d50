"""Private API of TensorFlow: frozen graphs, and the optimizer of graphs.

TensorFlow has no public way to turn the variables of a function into constants. The tests of
conversions fail when a release changes these names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorflow.core.protobuf import config_pb2, meta_graph_pb2
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

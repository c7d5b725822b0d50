"""Reject traced steps that cannot be sent to workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from timonel.errors import TimonelError
from timonel.training.worker.private import ps_variables, row_dependence

READS = frozenset(
    {"ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape"}
    | {"VarIsInitializedOp", "Identity", "NoOp"}
)
"""Operations allowed on variables that are not watched."""
_CALLS = frozenset(
    {"PartitionedCall", "StatefulPartitionedCall", "If", "StatelessIf"}
    | {"While", "StatelessWhile", "Case", "StatelessCase"}
)
_PYTHON_OPS = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc"})


def refuse_python(graph: Any) -> None:
    """Reject steps that call Python, as workers do not run the script."""
    for node in row_dependence.nodes(graph.as_graph_def()):
        if node.op in _PYTHON_OPS:
            raise TimonelError(
                f"parameter servers do not support a train step that calls Python ({node.name})",
                hint="their workers do not run the script: write the step without "
                "tf.py_function and tf.numpy_function, or call Python in the dataset",
            )


def refuse_writes(graph: Any, names: Mapping[int, Any]) -> None:
    """Reject steps that assign unwatched variables, as this could not be undone."""
    captured = {inner.ref(): outer for outer, inner in graph.captures if inner.dtype == tf.resource}
    known = {
        variable.handle.ref() if hasattr(variable, "handle") else None: variable
        for variable in map(ps_variables.raw, names.values())
    }
    for operation in graph.get_operations():
        if operation.type in READS | _CALLS:
            continue
        for value in operation.inputs:
            outer = captured.get(value.ref()) if value.dtype == tf.resource else None
            if outer is not None and operation.type.startswith(
                ("Assign", "ResourceS", "ResourceA")
            ):
                variable = known.get(outer.ref())
                what = "a variable that the model does not list"
                raise TimonelError(
                    f"the train step assigns {what if variable is None else variable.name} outside "
                    f"its optimizer ({operation.type}), which parameter servers do not support",
                    hint="create it with add_weight(trainable=False), or train with --strategy "
                    "multi-worker",
                )

"""Private API of TensorFlow used by the server.

Only this API gives access to the registry of operations, the source of the list for safe loading.
`Session.run` and `Session.make_callable` compare the shapes of fed arrays with the placeholder's
and reject inputs that TensorFlow Serving accepts, such as a vector for a ``[-1, 1]`` placeholder.
The callable behind `make_callable` goes straight to C++ and compares nothing. A test fails when a
release changes it.

Importing TensorFlow imports all of Keras, and Keras imports scikit-learn, SciPy, matplotlib and
pandas if installed: half of the import time. Computing a SavedModel needs none of these.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

_EAGER = ("keras.src.optimizers", "tf_keras.src.optimizers", "h5py", "scipy.sparse")
"""Optional imports of TensorFlow: Keras itself, and h5py and SciPy for an old vendored copy of
Keras, which takes 10 MiB and half a second.
"""
_import_lock = threading.Lock()


def import_tensorflow() -> None:
    """Import TensorFlow without Keras, which is still imported on first use. Idempotent."""
    with _import_lock:
        if "tensorflow" not in sys.modules:
            _import_without_keras()


def _import_without_keras() -> None:
    missing = [name for name in _EAGER if name not in sys.modules]
    modules: dict[str, Any] = sys.modules
    modules.update(dict.fromkeys(missing))
    try:
        importlib.import_module("tensorflow")
    finally:
        for name in missing:
            modules.pop(name, None)


def make_callable(session: Any, feed: Sequence[str], fetch: Sequence[str]) -> Callable[..., Any]:
    """Return a function from the arrays of ``feed`` to those of ``fetch``.

    Args:
        session: A ``tf.compat.v1.Session``; it must outlive the function.
        feed: Names of the tensors to feed.
        fetch: Names of the tensors to return.
    """
    from tensorflow.core.protobuf import config_pb2  # noqa: PLC0415 - imports TensorFlow

    options = config_pb2.CallableOptions(feed=feed, fetch=fetch)
    return session._make_callable_from_options(options)  # type: ignore[no-any-return]  # no types


def freeze(version: Path, tags: Sequence[str], signatures: Mapping[str, Any]) -> Any:
    """Return a SavedModel with constants in place of variables, as a proto.

    Constants shared by several signatures are stored once.

    Args:
        version: The folder of the SavedModel.
        tags: The tags of its graph.
        signatures: The ``SignatureDef`` of each signature that clients can call.

    Raises:
        ValueError: The model holds other resources than variables, for example tables.
    """
    import tensorflow as tf  # noqa: PLC0415 - imports TensorFlow
    from tensorflow.core.protobuf import saved_model_pb2  # noqa: PLC0415 - imports TensorFlow
    from tensorflow.python.framework import convert_to_constants  # noqa: PLC0415 - imports it

    loaded = tf.saved_model.load(str(version), list(tags))
    made = saved_model_pb2.SavedModel(saved_model_schema_version=1)
    meta_graph = made.meta_graphs.add()
    meta_graph.meta_info_def.tags.extend(tags)
    graph = tf.Graph()
    shared: dict[bytes, Any] = {}
    for number, (name, proto) in enumerate(sorted(signatures.items())):
        function = loaded.signatures[name]
        keywords = function._arg_keywords
        frozen = convert_to_constants.convert_variables_to_constants_v2(function)
        if len(frozen.inputs) != len(keywords):
            raise ValueError(f"signature {name} holds more than variables")
        _import(graph, frozen.graph.as_graph_def(), f"signature_{number}", shared)
        copy = meta_graph.signature_def[name]
        copy.CopyFrom(proto)
        # Outputs are sorted by name, as TensorFlow flattens dictionaries.
        for infos, names, tensors in (
            (copy.inputs, keywords, frozen.inputs),
            (copy.outputs, sorted(function.structured_outputs), frozen.outputs),
        ):
            for alias, tensor in zip(names, tensors, strict=True):
                infos[alias].name = f"signature_{number}/{tensor.name}"
    meta_graph.graph_def.CopyFrom(graph.as_graph_def())
    return made


def _import(graph: Any, definition: Any, prefix: str, shared: dict[bytes, Any]) -> None:
    """Import a graph into another one; reuse constants that are already there."""
    import tensorflow as tf  # noqa: PLC0415 - imports TensorFlow

    known, fresh, kept = {}, {}, []
    for node in definition.node:
        if node.op == "Const":
            content = node.attr["value"].tensor.SerializeToString()
            if content in shared:
                known[f"{node.name}:0"] = shared[content]
                continue
            fresh[content] = f"{prefix}/{node.name}:0"
        kept.append(node)
    del definition.node[:]
    definition.node.extend(kept)
    with graph.as_default():
        tf.import_graph_def(definition, input_map=known, name=prefix)
    shared.update({content: graph.get_tensor_by_name(name) for content, name in fresh.items()})


def registered_operations() -> list[tuple[str, bool]]:
    """Return all operations of TensorFlow, and whether each is stateful."""
    from tensorflow.core.framework import op_def_pb2  # noqa: PLC0415 - imports TensorFlow
    from tensorflow.python.client import pywrap_tf_session  # noqa: PLC0415 - imports TensorFlow

    content = pywrap_tf_session.TF_GetBuffer(pywrap_tf_session.TF_GetAllOpList())
    return [(op.name, op.is_stateful) for op in op_def_pb2.OpList.FromString(content).op]

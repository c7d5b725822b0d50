"""Private API of TensorFlow used by the server.

Only this API gives access to the registry of operations, the source of the list for safe loading.
`Session.run` and `Session.make_callable` compare the shapes of fed arrays with the placeholder's
and reject inputs that TensorFlow Serving accepts, such as a vector for a ``[-1, 1]`` placeholder.
The callable behind `make_callable` goes straight to C++ and compares nothing. Tests fail when a
release changes one of these.

Importing TensorFlow imports all of Keras, and Keras imports scikit-learn, SciPy, matplotlib and
pandas if installed: half of the import time. Computing a SavedModel needs none of these.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from timonel.models.safety.rank_checks import add_rank_checks
from timonel.serving.memory import exempt_imports

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
            exempt_imports()


def _import_without_keras() -> None:
    missing = [name for name in _EAGER if name not in sys.modules]
    modules: dict[str, Any] = sys.modules
    modules.update(dict.fromkeys(missing))
    try:
        importlib.import_module("tensorflow")
    finally:
        for name in missing:
            modules.pop(name, None)


def run_in_callers(session: Any) -> None:
    """Make ``session.run`` compute in the calling thread, which loading uses."""
    session.run = partial(session.run, options=_in_callers())


def load_saved_model(session: Any, folder: Path, checked: Any, tags: Sequence[str]) -> Any:
    """Load a SavedModel into a session, and return its ``MetaGraphDef``.

    Args:
        session: A ``tf.compat.v1.Session``, whose graph is the default one.
        checked: The ``SavedModel`` to use instead of the file; None to read it. Only the loader's
            attribute takes one, and the file may be replaced after a check.

    Checks of ranks are added where a request could otherwise end the process.
    """
    from tensorflow.core.protobuf import saved_model_pb2  # noqa: PLC0415 - imports TensorFlow
    from tensorflow.python.saved_model import loader_impl  # noqa: PLC0415 - imports TensorFlow

    loader = loader_impl.SavedModelLoader(str(folder))
    if checked is not None:
        loader._saved_model = saved_model_pb2.SavedModel.FromString(checked.SerializeToString())
    for meta_graph in loader._saved_model.meta_graphs:
        add_rank_checks(meta_graph)
    return loader.load(session, list(tags))


def make_callable(
    session: Any, feed: Sequence[str], fetch: Sequence[str], *, in_callers: bool
) -> Callable[..., Any]:
    """Return a function from the arrays of ``feed`` to those of ``fetch``.

    Args:
        session: A ``tf.compat.v1.Session``; it must outlive the function.
        in_callers: Whether operations run in the calling thread, one after another.
    """
    from tensorflow.core.protobuf import config_pb2  # noqa: PLC0415 - imports TensorFlow

    run = _in_callers() if in_callers else None
    options = config_pb2.CallableOptions(feed=feed, fetch=fetch, run_options=run)
    return session._make_callable_from_options(options)  # type: ignore[no-any-return]  # no types


def _in_callers() -> Any:
    from tensorflow.core.protobuf import config_pb2  # noqa: PLC0415 - imports TensorFlow

    return config_pb2.RunOptions(inter_op_thread_pool=-1)


def freeze(version: Path, tags: Sequence[str], signatures: Mapping[str, Any]) -> Any:
    """Return a SavedModel with constants in place of variables, as a proto.

    Constants shared by several signatures are stored once.
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

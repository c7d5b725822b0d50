"""Rename the inputs of a SavedModel to the names used by clients.

TensorFlow turns the names of a signature's inputs into names of graph nodes and Python parameters.
A column named ``sepal length (cm)``, ``class`` or ``Größe`` can be neither: saving fails, or mixes
up inputs whose altered names sort differently. Such signatures are traced with plain names, and the
names for clients are written into the saved file afterwards.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from tensorflow.core.protobuf import saved_model_pb2

_PLAIN = re.compile(r"[a-z][a-z0-9_]*")
# Parameter names that the call of a loaded signature uses itself.
_TAKEN = frozenset({"self", "name", "args", "kwargs"})


def plain_names(names: Sequence[str]) -> list[str]:
    """Return names for tracing: unchanged if all are valid, else numbered."""
    if all(_is_plain(name) for name in names):
        return list(names)
    width = len(str(len(names)))
    return [f"input_{number:0{width}d}" for number in range(len(names))]


def rename_inputs(folder: Path, renamed: Mapping[str, Mapping[str, str]]) -> None:
    """Rename inputs of a SavedModel that no other process reads yet.

    Args:
        folder: The SavedModel.
        renamed: Per signature, the final name by the traced name.
    """
    changes = {
        key: names for key, names in renamed.items() if any(a != b for a, b in names.items())
    }
    if not changes:
        return
    path = folder / "saved_model.pb"
    saved_model = saved_model_pb2.SavedModel.FromString(path.read_bytes())
    for meta_graph in saved_model.meta_graphs:
        for signature, names in changes.items():
            _rename_signature(meta_graph, signature, names)
    path.write_bytes(saved_model.SerializeToString(deterministic=True))
    # The fingerprint, which is optional, holds a hash of the file before the change.
    (folder / "fingerprint.pb").unlink(missing_ok=True)


def _is_plain(name: str) -> bool:
    return bool(_PLAIN.fullmatch(name)) and not keyword.iskeyword(name) and name not in _TAKEN


def _rename_signature(
    meta_graph: saved_model_pb2.MetaGraphDef, signature: str, names: Mapping[str, str]
) -> None:
    inputs = meta_graph.signature_def[signature].inputs
    tensors = {names[name]: tensor for name, tensor in inputs.items()}
    inputs.clear()
    for name, tensor in tensors.items():
        inputs[name].CopyFrom(tensor)
    if len({re.sub(r"\W", "_", name) for name in names.values()}) < len(names):
        # tf.saved_model.load turns these names into identifiers and fails on duplicates. Such a
        # model keeps the traced names there; servers use the signature above.
        return
    for node in _signature_functions(meta_graph, signature):
        keywords = node.bare_concrete_function.argument_keywords
        keywords[:] = [names.get(name, name) for name in keywords]


def _signature_functions(
    meta_graph: saved_model_pb2.MetaGraphDef, signature: str
) -> list[saved_model_pb2.SavedObject]:
    """Return the object of a signature's function, as a list.

    It is a child of the root's child ``signatures``.
    """
    nodes = meta_graph.object_graph_def.nodes
    maps = [child.node_id for child in nodes[0].children if child.local_name == "signatures"]
    children = [child for number in maps for child in nodes[number].children]
    return [nodes[child.node_id] for child in children if child.local_name == signature]

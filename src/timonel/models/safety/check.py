"""Check what a SavedModel can do before TensorFlow loads it. Without TensorFlow.

Most operations are judged by name. A few are part of every model and safe only there: restoring
from the model's own checkpoint, saving, and tables made from the model's own assets. TensorFlow
feeds the names of these files while it loads a model, not while it answers requests. So such an
operation may be reached from what loads, and must trace its file name to what is fed there.
"""

from __future__ import annotations

import logging
import shlex
import stat
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from google.protobuf.message import DecodeError

from timonel.errors import ModelError
from timonel.models.protos import meta_graph_pb2, saved_model_pb2, types_pb2, variable_pb2
from timonel.models.safety.graph import MAIN, ModelGraph
from timonel.models.safety.operations import library_hint, package_of, reason_against

_LOG = logging.getLogger(__name__)
_SHOWN_FINDINGS = 3
_BINARY, _TEXT, _CHUNKED = "saved_model.pb", "saved_model.pbtxt", "saved_model.cpb"
_MAX_BYTES = (1 << 31) - 1
"""Largest protocol buffer."""
_FILES = ("saved_model.pb*", "fingerprint.pb", "debug/*", "variables/*", "assets.extra/*")
"""Files that TensorFlow reads besides assets."""
_INIT_OP = "__saved_model_init_op"
_ASSETS_COLLECTION = "saved_model_assets"
_LOCAL_VARIABLES = "local_variables"
_FED = ("Const", "Placeholder", "PlaceholderWithDefault")
"""Operations whose value TensorFlow replaces while loading."""
_HANDLES = frozenset({types_pb2.DT_RESOURCE, types_pb2.DT_VARIANT})


@dataclass(frozen=True)
class Finding:
    """A reason to refuse a model.

    Args:
        operation: Its name; empty if allowing an operation would not help.
        node: The node's name.
        function: The function of the node; empty in the main graph.
        reason: The reason, in a phrase for messages.
    """

    operation: str
    node: str
    function: str
    reason: str

    def __str__(self) -> str:
        node = f"node {self.node}" if self.node else ""
        place = " of ".join(filter(None, (node, self.function and f"function {self.function}")))
        return " ".join(filter(None, (self.operation, self.reason, place and f"({place})")))


class UnreadableModelError(ModelError):
    """A SavedModel cannot be read."""


def check_saved_model(folder: Path, allowed: Collection[str] = ()) -> Any:
    """Reject the SavedModel in ``folder`` if loading or running it could do more than compute.

    Args:
        folder: The version's folder.

    Returns:
        The checked ``SavedModel``. The file may be another one by the time TensorFlow reads it.
    """
    began = time.monotonic()
    files = (path for pattern in _FILES for path in folder.glob(pattern))
    # Before the graph is read: errors quote words of it.
    if found := list(_outside(folder, files)):
        raise _rejection(found)
    try:
        checked = _read(folder)
        for meta_graph in checked.meta_graphs:
            paths = [folder / "assets" / asset.filename for asset in _assets(meta_graph)]
            found += [*_outside(folder, paths), *findings_in(meta_graph, allowed)]
    except (DecodeError, text_format.ParseError, UnicodeDecodeError, OSError) as error:
        raise UnreadableModelError(
            f"the SavedModel in {folder} cannot be read: {error}",
            hint="export or copy the model again",
        ) from error
    if found:
        raise _rejection(found)
    _LOG.debug("checked %s in %.3f s", folder, time.monotonic() - began)
    return checked


def findings_in(meta_graph: Any, allowed: Collection[str] = ()) -> Iterator[Finding]:
    """Yield the reasons to refuse a model.

    Args:
        meta_graph: A ``MetaGraphDef``.
    """
    graph = ModelGraph(meta_graph)
    files = _Files(meta_graph, graph)
    yield from files.findings()
    for scope, name in graph.repeated():
        yield Finding("", name, scope, "two nodes or functions have one name")
    for scope, node in graph.nodes():
        if node.op in allowed or graph.is_function(node.op):
            continue
        rule = _RULES.get(node.op)
        reason = reason_against(node.op) if rule is None else rule(files, scope, node)
        if reason is not None:
            yield Finding(node.op, node.name, scope, reason)
    for scope, node, name in graph.referred():
        # A name that is not in the function library may be an operation.
        if not graph.is_function(name) and name not in allowed:
            reason = reason_against(name)
            if reason is not None:
                yield Finding(name, node, scope, reason)


def _read(folder: Path) -> Any:
    """Return the SavedModel that TensorFlow would read."""
    file = next((folder / name for name in (_BINARY, _TEXT) if (folder / name).is_file()), None)
    if (folder / _CHUNKED).exists():
        raise OSError(f"{_CHUNKED} cannot be checked")
    if file is None:
        raise OSError(f"there is no {_BINARY}")
    if file.stat().st_size > _MAX_BYTES:
        raise OSError(f"{file.name} has more than 2 GiB")
    if file.name == _BINARY:
        return saved_model_pb2.SavedModel.FromString(file.read_bytes())
    return text_format.Parse(file.read_text("utf-8"), saved_model_pb2.SavedModel())


def _outside(folder: Path, paths: Iterable[Path]) -> Iterator[Finding]:
    """Yield findings for paths that are no regular files below a folder."""
    root = folder.resolve()
    for path in paths:
        try:
            target = path.resolve(strict=True)
            mode = target.stat().st_mode
            inside = target.is_relative_to(root) and (stat.S_ISREG(mode) or stat.S_ISDIR(mode))
        except (OSError, RuntimeError, ValueError):  # for example a loop of links, or NUL
            inside = False
        if not inside:
            name = path.relative_to(folder) if path.is_relative_to(folder) else path
            yield Finding("", "", "", f"{str(name)!r} is no regular file in the model's folder")


def _rejection(found: Sequence[Finding]) -> ModelError:
    shown = "; ".join(str(each) for each in found[:_SHOWN_FINDINGS])
    more = f"; and {len(found) - _SHOWN_FINDINGS} more" if len(found) > _SHOWN_FINDINGS else ""
    message = f"Safe loading rejects the model: {shown}{more}"
    names = sorted({each.operation for each in found})
    if not names[0]:  # files outside of the folder stay closed
        only_files = not any(each.node for each in found)
        return ModelError(message, hint="copy the model with 'cp -rL'" if only_files else None)
    if packages := {package for name in names if (package := package_of(name))}:
        return ModelError(message, hint=library_hint(packages))
    options = " ".join(f"--allow-op {shlex.quote(name)}" for name in names)
    flags = f"timonel-model-server: --allow_ops={','.join(names)}; timonel deploy: after --"
    return ModelError(f"{message}. If you trust its author, add {options} ({flags})")


class _Files:
    """Origins of file names, and the nodes that run while loading and while answering."""

    def __init__(self, meta_graph: Any, graph: ModelGraph) -> None:
        self._graph = graph
        self._signatures = meta_graph.signature_def
        self._checkpoint = _node(meta_graph.saver_def.filename_tensor_name)
        self._assets = {_node(each.tensor_info.name) for each in _assets(meta_graph)}
        functions = set(meta_graph.object_graph_def.concrete_functions)
        answering: set[str] = set()
        loading = set(_initializers(meta_graph))
        for name, signature in self._signatures.items():
            roots = loading if name == _INIT_OP else answering
            roots.update(*map(_tensors, signature.outputs.values()))
        restore = {meta_graph.saver_def.restore_op_name}
        self._answering = graph.reached_from(answering | restore)
        self._restoring = graph.reached_from(restore)
        self._calling = graph.reached_from(answering | loading | functions)

    def findings(self) -> Iterator[Finding]:
        """Yield findings for the nodes that hold names of files."""
        names = {*self._assets, self._checkpoint} - {""}
        for name, signature in self._signatures.items():
            for tensor in (each for info in signature.inputs.values() for each in _tensors(info)):
                if (node := _node(tensor)) in names:
                    reason = f"signature {name} lets a client name a file"
                    yield Finding("", node, MAIN, reason)
        for name in self._assets:
            yield from self._unless_fed(name, "an asset's path is computed")
        if self._checkpoint:
            yield from self._unless_fed(self._checkpoint, "the checkpoint's path is computed")

    def _unless_fed(self, name: str, reason: str) -> Iterator[Finding]:
        node = self._graph.node(name)
        if node is None or node.op not in _FED:
            yield Finding("", name, MAIN, reason)

    def is_asset(self, scope: str, node: Any) -> bool:
        """Return whether a table's file is an asset; its path is fed only while loading."""
        if (scope, node.name) in self._answering:
            return False
        return self._graph.origins(scope, node.input[1], self._answering) <= self._assets

    def is_checkpoint(self, scope: str, node: Any) -> bool:
        """Return whether a restored file is the checkpoint, or never read."""
        place = scope, node.name
        if place in self._calling:
            return False
        if place not in self._restoring:
            return True
        return self._graph.origins(scope, node.input[0], self._calling) <= {self._checkpoint}

    def runs(self, scope: str, node: Any) -> bool:
        """Return whether a node may run."""
        return (scope, node.name) in self._calling | self._restoring


def _makes_table(files: _Files, scope: str, node: Any) -> str | None:
    if len(node.input) > 1 and files.is_asset(scope, node):
        return None
    return "reads a file that is no asset of the model"


def _restores(files: _Files, scope: str, node: Any) -> str | None:
    if node.input and files.is_checkpoint(scope, node):
        return _decodes(files, scope, node)
    return "reads a file that is not the model's checkpoint"


def _saves(files: _Files, scope: str, node: Any) -> str | None:
    return "writes files" if files.runs(scope, node) else None


def _prints(_: _Files, __: str, node: Any) -> str | None:
    return None if _text(node, "output_stream", b"stderr")[:7] != b"file://" else "writes files"


def _describes(_: _Files, __: str, node: Any) -> str | None:
    source = _text(node, "descriptor_source", b"local://")
    return None if source in {b"", b"local://"} or source[:8] == b"bytes://" else "reads files"


def _samples(_: _Files, __: str, node: Any) -> str | None:
    return "reads files" if _text(node, "vocab_file", b"") else None


def _decodes(_: _Files, __: str, node: Any) -> str | None:
    """Refuse handles from data: they may name any variable, also that of an asset's path."""
    for value in node.attr.values():
        kind = value.WhichOneof("value")
        types = [value.type] if kind == "type" else value.list.type if kind == "list" else ()
        if kind == "placeholder" or not _HANDLES.isdisjoint(types):
            return "makes handles of resources from data"
    return None


_Rule = Callable[[_Files, str, Any], str | None]
_RULES: dict[str, _Rule] = {
    **dict.fromkeys(("InitializeTableFromTextFile", "InitializeTableFromTextFileV2"), _makes_table),
    **dict.fromkeys(("Restore", "RestoreSlice", "RestoreV2"), _restores),
    **dict.fromkeys(
        ("Save", "SaveSlices", "SaveV2", "MergeV2Checkpoints", "ShardedFilename"), _saves
    ),
    "ShardedFilespec": _saves,
    "PrintV2": _prints,
    **dict.fromkeys(("DecodeProtoV2", "EncodeProto"), _describes),
    "FixedUnigramCandidateSampler": _samples,
    **dict.fromkeys(("Const", "HostConst", "ParseTensor"), _decodes),
    **dict.fromkeys(("DeserializeSparse", "DeserializeManySparse"), _decodes),
}


def _initializers(meta_graph: Any) -> Iterator[str]:
    """Yield nodes of collections: TensorFlow runs some of them to initialize a model."""
    for name, collection in meta_graph.collection_def.items():
        yield from collection.node_list.value
        if name == _LOCAL_VARIABLES:
            for content in collection.bytes_list.value:
                yield variable_pb2.VariableDef.FromString(content).initializer_name


def _tensors(info: Any) -> Iterator[str]:
    """Yield the names of a signature's tensor in all encodings."""
    yield info.name
    yield from (each.name for each in info.composite_tensor.components)
    sparse = info.coo_sparse
    yield from (sparse.values_tensor_name, sparse.indices_tensor_name)
    yield sparse.dense_shape_tensor_name


def _assets(meta_graph: Any) -> list[Any]:
    if meta_graph.asset_file_def:
        return list(meta_graph.asset_file_def)
    found = []
    if _ASSETS_COLLECTION in meta_graph.collection_def:
        for each in meta_graph.collection_def[_ASSETS_COLLECTION].any_list.value:
            asset = meta_graph_pb2.AssetFileDef()
            each.Unpack(asset)
            found.append(asset)
    return found


def _text(node: Any, attribute: str, default: bytes) -> bytes:
    if attribute not in node.attr:
        return default
    value = node.attr[attribute]
    # The value is set by the function's caller, and unknown here.
    return bytes(value.s) if value.WhichOneof("value") == "s" else b"file://"


def _node(tensor: str) -> str:
    return tensor.partition(":")[0]

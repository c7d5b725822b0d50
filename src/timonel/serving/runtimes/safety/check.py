"""Check what a SavedModel can do before TensorFlow loads it. Without TensorFlow.

Most operations are judged by name. A few are part of every model and safe only there: restoring
from the model's own checkpoint, saving (which a server never does), and tables made from the
model's own assets. For these the rules trace where their file names come from.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from google.protobuf import text_format
from google.protobuf.message import DecodeError

from timonel.serving.protos.messages import meta_graph_pb2, saved_model_pb2
from timonel.serving.runtimes.safety.graph import MAIN, UNKNOWN, ModelGraph
from timonel.serving.runtimes.safety.operations import reason_against
from timonel.serving.status import Code, StatusError

_LOG = logging.getLogger(__name__)
_SHOWN_FINDINGS = 3
_OPTION = "--allow-op; with timonel-model-server --allow_ops"
_BINARY, _TEXT = "saved_model.pb", "saved_model.pbtxt"
_INIT_COLLECTIONS = ("saved_model_main_op", "legacy_init_op")
_ASSETS_COLLECTION = "saved_model_assets"


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


def check_folder(folder: Path, tags: Sequence[str], allowed: Collection[str] = ()) -> None:
    """Reject the SavedModel in ``folder`` if it could do more than compute.

    This covers loading and running it.

    Args:
        folder: The version's folder.
        tags: The tags of the graph to load.
        allowed: Trusted operations.

    Raises:
        StatusError: The model holds a refused operation, or cannot be read.
    """
    began = time.monotonic()
    saved_model = _read(folder)
    if saved_model is None:
        return
    for meta_graph in saved_model.meta_graphs:
        if set(meta_graph.meta_info_def.tags) == set(tags):
            found = [*findings_in(meta_graph, allowed), *_links(folder)]
            if found:
                raise StatusError(Code.PERMISSION_DENIED, _message(found))
    _LOG.debug("checked %s in %.3f s", folder, time.monotonic() - began)


def findings_in(meta_graph: Any, allowed: Collection[str] = ()) -> Iterator[Finding]:
    """Yield the reasons to refuse a model.

    Args:
        meta_graph: A ``MetaGraphDef``.
        allowed: Trusted operations.
    """
    graph = ModelGraph(meta_graph)
    files = _Files(meta_graph, graph)
    yield from _outside_assets(meta_graph)
    yield from files.fed_by_clients()
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
                yield Finding(name, node.name, scope, reason)


def _read(folder: Path) -> Any:
    """Return the SavedModel that TensorFlow would read, or None."""
    try:
        if (folder / _BINARY).is_file():
            return saved_model_pb2.SavedModel.FromString((folder / _BINARY).read_bytes())
        if (folder / _TEXT).is_file():
            text = (folder / _TEXT).read_text(encoding="utf-8")
            return text_format.Parse(text, saved_model_pb2.SavedModel())
    except (DecodeError, text_format.ParseError, UnicodeDecodeError, OSError) as error:
        raise StatusError(
            Code.INVALID_ARGUMENT, f"the SavedModel in {folder} cannot be read: {error}"
        ) from error
    return None


def _links(folder: Path) -> list[Finding]:
    """Return findings for links that lead out of the model's folder."""
    root = folder.resolve()
    found = []
    for place, folders, names in os.walk(folder / "assets"):
        for name in (*folders, *names):
            path = Path(place, name)
            if path.is_symlink() and not path.resolve().is_relative_to(root):
                reason = f"{path.relative_to(folder)} is a link out of the model's folder"
                found.append(Finding("", "", "", reason))
    return found


def _message(found: Sequence[Finding]) -> str:
    shown = "; ".join(str(each) for each in found[:_SHOWN_FINDINGS])
    names = sorted({each.operation for each in found} - {""})
    more = f"; and {len(found) - _SHOWN_FINDINGS} more" if len(found) > _SHOWN_FINDINGS else ""
    trust = f". If you trust its author, allow {', '.join(names)} ({_OPTION})" if names else ""
    return f"Safe loading rejects the model: {shown}{more}{trust}"


class _Files:
    """Origins of file names, and the nodes that a server runs."""

    def __init__(self, meta_graph: Any, graph: ModelGraph) -> None:
        self._meta_graph = meta_graph
        self._graph = graph
        self._checkpoint = _node(meta_graph.saver_def.filename_tensor_name)
        self._assets = {_node(each.tensor_info.name) for each in _assets(meta_graph)}

    def fed_by_clients(self) -> Iterator[Finding]:
        """Yield findings for file names that a signature takes from clients."""
        own = self._assets | ({self._checkpoint} if self._checkpoint else set())
        for name, signature in self._meta_graph.signature_def.items():
            for info in signature.inputs.values():
                if (node := _node(info.name)) in own:
                    reason = f"signature {name} lets a client name a file"
                    yield Finding("", node, MAIN, reason)

    def is_asset(self, scope: str, reference: str) -> bool:
        return self._graph.origins(scope, reference) <= self._assets

    def is_checkpoint(self, scope: str, reference: str) -> bool:
        origins = self._graph.origins(scope, reference)
        return UNKNOWN not in origins and origins <= {self._checkpoint}

    def runs(self, scope: str, node: Any) -> bool:
        return (scope, node.name) in self._running

    @cached_property
    def _running(self) -> set[tuple[str, str]]:
        meta_graph = self._meta_graph
        roots = [meta_graph.saver_def.restore_op_name]
        for signature in meta_graph.signature_def.values():
            roots += [info.name for info in signature.outputs.values()]
            for info in signature.outputs.values():
                roots += [each.name for each in info.composite_tensor.components]
                roots += [info.coo_sparse.values_tensor_name, info.coo_sparse.indices_tensor_name]
                roots.append(info.coo_sparse.dense_shape_tensor_name)
        for key in _INIT_COLLECTIONS:
            if key in meta_graph.collection_def:
                roots += meta_graph.collection_def[key].node_list.value
        return self._graph.reached_from(roots)


def _makes_table(files: _Files, scope: str, node: Any) -> str | None:
    if len(node.input) > 1 and files.is_asset(scope, node.input[1]):
        return None
    return "reads a file that is no asset of the model"


def _restores(files: _Files, scope: str, node: Any) -> str | None:
    if node.input and files.is_checkpoint(scope, node.input[0]):
        return None
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
}


def _outside_assets(meta_graph: Any) -> Iterator[Finding]:
    for asset in _assets(meta_graph):
        path = PurePosixPath(asset.filename)
        if path.is_absolute() or ".." in path.parts:
            reason = f"an asset is outside of the model's folder: {asset.filename}"
            yield Finding("", _node(asset.tensor_info.name), MAIN, reason)


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

"""Check of a version's folder before TensorFlow loads it. Without TensorFlow."""

from __future__ import annotations

import itertools
import logging
import os
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from google.protobuf.message import DecodeError

from timonel.serving.protos.messages import saved_model_pb2
from timonel.serving.runtimes.safety.rules import Finding, findings_in
from timonel.serving.status import Code, StatusError

_LOG = logging.getLogger(__name__)
_TOLD = 3
_HOW = "--allow-op; with timonel-model-server --allow_ops"
_BINARY, _TEXT = "saved_model.pb", "saved_model.pbtxt"


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
            found = list(itertools.chain(findings_in(meta_graph, allowed), _links(folder)))
            if found:
                raise StatusError(Code.PERMISSION_DENIED, _message(found))
    _LOG.debug("checked %s in %.3f s", folder, time.monotonic() - began)


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
    told = "; ".join(str(each) for each in found[:_TOLD])
    names = sorted({each.operation for each in found} - {""})
    more = f"; and {len(found) - _TOLD} more" if len(found) > _TOLD else ""
    trust = f". If you trust whoever made it, allow {', '.join(names)} ({_HOW})" if names else ""
    return f"Safe loading refuses the model: {told}{more}{trust}"

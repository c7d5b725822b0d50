"""Whether a SavedModel can have a flatbuffer at all, seen without TensorFlow in milliseconds.

Most models that take files or rows as they are hold operations that LiteRT has never had. To find
that out by converting them would cost seconds each time something is exported.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from timonel.serving.messages import saved_model_pb2
from timonel.serving.runtimes.base import INIT_OP
from timonel.serving.safety.graph import Graph

_LACKING = re.compile(
    r"(Decode(AndCrop|Jpeg|Png|Gif|Bmp|Image|Webp|Wav|CSV|Compressed|Base64|JSON|Proto)\w*"
    r"|Parse(Single)?(Sequence)?Example\w*|ParseTensor|AsString|Regex\w+|String\w+|Unicode\w+"
    r"|StaticRegex\w+|Substr|ReduceJoin|LookupTable\w+|(Eager)?PyFunc|XlaCallModule)"
)


def obstacle(version: Path, tags: Sequence[str] = ("serve",)) -> str | None:
    """Return why LiteRT cannot compute a SavedModel; none where that is to be tried."""
    try:
        model = saved_model_pb2.SavedModel.FromString((version / "saved_model.pb").read_bytes())
    except (OSError, DecodeError):
        return "there is no saved_model.pb to convert"
    for meta_graph in model.meta_graphs:
        if set(meta_graph.meta_info_def.tags) == set(tags):
            found = _lacking(meta_graph)
            return f"LiteRT has no {', '.join(found)}" if found else None
    return f"it has no graph tagged {', '.join(tags)}"


def _lacking(meta_graph: Any) -> list[str]:
    graph = Graph(meta_graph)
    roots = [
        info.name
        for name, signature in meta_graph.signature_def.items()
        if name != INIT_OP
        for info in signature.outputs.values()
    ]
    running = graph.reached_from(roots)
    return sorted(
        {
            node.op
            for scope, node in graph.nodes()
            if (scope, node.name) in running and _LACKING.fullmatch(node.op)
        }
    )

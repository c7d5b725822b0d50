"""The measuring process: ``python -m timonel.serving.optimizing.child REQUEST FINDINGS``.

It converts a SavedModel to a flatbuffer, has both runtimes compute the same requests, and writes
down how far apart their answers are and how long they took. What follows from that is decided by
the process that asked (`decision`). Converting leaks memory, so nothing else is done here.
"""

from __future__ import annotations

import importlib.metadata
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from timonel.models.child import end_with_parent
from timonel.serving.batching_settings import cores
from timonel.serving.config import RuntimeSettings, default_op_threads
from timonel.serving.messages import saved_model_pb2
from timonel.serving.optimizing.decision import TOLERANCE
from timonel.serving.optimizing.measuring import compared, measured
from timonel.serving.optimizing.request import Findings, Request
from timonel.serving.runtimes import _private
from timonel.serving.runtimes.base import LoadedModel, Signature
from timonel.serving.runtimes.evidence import CONVERTED, FROZEN, Choice
from timonel.serving.runtimes.litert import load_flatbuffer
from timonel.serving.runtimes.tensorflow import TensorFlowRuntime
from timonel.serving.safety.check import check_folder
from timonel.serving.samples import MOST, samples_of
from timonel.serving.status import StatusError
from timonel.storage import write_json

_PACKAGES = ("tensorflow", "ai-edge-litert")
_LACKING = re.compile(r"'?tf\.([A-Za-z0-9_]+)'? op is neither|ops: ([A-Za-z0-9_, ]+)")


def find(request: Request) -> Findings:
    """Make what can be made of the SavedModel, compare and measure."""
    # As it will be served: it has to be compared with what it competes with.
    settings = RuntimeSettings(intra_op_threads=default_op_threads())
    try:
        check_folder(request.version, settings.tags)
    except StatusError as error:
        return Findings(impossible=dict.fromkeys(_WAYS, error.message))
    models: dict[Choice, LoadedModel] = {}
    theirs = TensorFlowRuntime().load(request.version, settings)
    impossible: dict[Choice, str] = {}
    differences: dict[Choice, tuple[float, ...]] = {}
    samples = samples_of(request.samples, MOST)
    for way, make in _WAYS.items():
        if way == "litert" and not request.litert:
            continue
        try:
            model = make(request, settings, theirs.signatures)
            found = compared(theirs, model, samples)
        except (StatusError, NotMadeError) as error:
            impossible[way] = str(getattr(error, "message", error))
            continue
        differences[way] = tuple(found)
        # Nobody wants to know how fast wrong answers are.
        if all(each <= TOLERANCE for each in found):
            models[way] = model
    return Findings(
        impossible=impossible,
        samples=len(samples),
        differences=differences,
        measurements=tuple(measured({"tensorflow": theirs, **models}, samples) if models else ()),
        versions={name: importlib.metadata.version(name) for name in _PACKAGES},
        cores=cores(),
    )


class NotMadeError(Exception):
    """TensorFlow refuses to convert the model."""


def _flatbuffer(
    request: Request, settings: RuntimeSettings, signatures: Mapping[str, Signature]
) -> LoadedModel:
    content = converted(request.version, settings.tags)
    path = request.made / CONVERTED
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return load_flatbuffer(content, settings, signatures)


def _frozen(request: Request, settings: RuntimeSettings, _: Mapping[str, Signature]) -> LoadedModel:
    content = (request.version / "saved_model.pb").read_bytes()
    for graph in saved_model_pb2.SavedModel.FromString(content).meta_graphs:
        if set(graph.meta_info_def.tags) == set(settings.tags):
            protos = {name: each for name, each in graph.signature_def.items() if each.inputs}
            break
    else:
        raise NotMadeError("it has no such graph")
    try:
        made = _private.freeze(request.version, settings.tags, protos)
    except Exception as error:
        # Whatever it stumbles over, the model stays as it is.
        first = next(iter(str(error).splitlines()), type(error).__name__)
        raise NotMadeError(f"its variables cannot be frozen: {first[:200]}") from error
    folder = request.made / FROZEN
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "saved_model.pb").write_bytes(made.SerializeToString())
    return TensorFlowRuntime().load(folder, settings)


_WAYS: dict[Choice, Callable[..., LoadedModel]] = {"litert": _flatbuffer, "frozen": _frozen}


def converted(version: Path, tags: Sequence[str]) -> bytes:
    """Return the flatbuffer of a SavedModel, with all its signatures.

    Raises:
        NotMadeError: It has operations that LiteRT lacks.
    """
    import tensorflow as tf  # noqa: PLC0415 - the seconds are spent once the request was read

    try:
        converter = tf.lite.TFLiteConverter.from_saved_model(str(version), tags=set(tags))
        content: bytes = converter.convert()
    except Exception as error:
        # Whatever the converter stumbles over, the model stays as it is.
        raise NotMadeError(_reason(str(error))) from error
    return content


def _reason(text: str) -> str:
    found = {
        name.strip()
        for match in _LACKING.finditer(text)
        for name in (match.group(1) or match.group(2)).split(",")
    }
    if found:
        return f"LiteRT has no {', '.join(sorted(found))}"
    first = next((line for line in text.splitlines() if line.strip()), "no message")
    return f"it cannot be converted: {first.strip()[:200]}"


def main(arguments: Sequence[str]) -> int:
    """Answer the request in the first file into the second."""
    asked, answered = map(Path, arguments)
    found = find(Request.model_validate_json(asked.read_text()))
    body: dict[str, Any] = found.model_dump(mode="json")
    write_json(answered, body)
    return 0


if __name__ == "__main__":
    end_with_parent()
    sys.exit(main(sys.argv[1:]))

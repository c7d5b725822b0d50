"""Measuring process: ``python -m timonel.serving.selection.benchmark.process REQUEST ANSWER``.

It converts a SavedModel to a flatbuffer, freezes its variables, and compares and times both with
TensorFlow on the same requests. The answer is an `Evidence`, or an error. Converting leaks memory,
so the process does nothing else.
"""

from __future__ import annotations

import importlib.metadata
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from timonel.errors import ModelError, TimonelError
from timonel.models.child import end_with_parent
from timonel.models.evidence import CONVERTED, FROZEN, Choice, Evidence, identity, made_for
from timonel.models.optimization import Request
from timonel.models.schema import WARMUP_FILE
from timonel.serving.protos.messages import saved_model_pb2
from timonel.serving.runtimes import _private
from timonel.serving.runtimes.base import LoadedModel
from timonel.serving.runtimes.litert import load_flatbuffer
from timonel.serving.runtimes.safety.check import check_folder
from timonel.serving.runtimes.safety.graph import Graph
from timonel.serving.runtimes.samples import MOST, Sample, as_warmup_file, samples_of
from timonel.serving.runtimes.signatures import signatures_in
from timonel.serving.runtimes.tensorflow import TensorFlowRuntime
from timonel.serving.selection.benchmark.benchmark import TOLERANCE, compared, decide, measured
from timonel.serving.selection.benchmark.inputs import held_out, samples_in
from timonel.serving.settings import RuntimeSettings, default_op_threads
from timonel.serving.settings.batching import cores
from timonel.serving.signature import INIT_OP, Signature
from timonel.serving.status import StatusError
from timonel.storage import digest_file, write_json

_PACKAGES = ("tensorflow", "ai-edge-litert")
_TAGS = ("serve",)
_WORTH_LITERT, _WORTH_FROZEN = 256 << 10, 4 << 20
"""Below these bytes of variables, computing takes less time than the rest of a request."""
_REFUSED = re.compile(r"'?tf\.([A-Za-z0-9_]+)'? op is neither|ops: ([A-Za-z0-9_, ]+)")
# Most models for files or rows hold operations that LiteRT lacks. Detecting this by converting them
# would take seconds for each export.
_LACKING = re.compile(
    r"(Decode(AndCrop|Jpeg|Png|Gif|Bmp|Image|Webp|Wav|CSV|Compressed|Base64|JSON|Proto)\w*"
    r"|Parse(Single)?(Sequence)?Example\w*|ParseTensor|AsString|Regex\w+|String\w+|Unicode\w+"
    r"|StaticRegex\w+|Substr|ReduceJoin|LookupTable\w+|(Eager)?PyFunc|XlaCallModule)"
)


def choose(request: Request) -> Evidence:
    """Convert, compare, measure and choose.

    Raises:
        ModelError: Required requests are missing.
        InputError: The samples cannot be read.
        SpecError: The samples do not match the model's inputs.
    """
    samples = _samples(request)[:MOST]
    if samples:
        (request.output / WARMUP_FILE).parent.mkdir(exist_ok=True)
        (request.output / WARMUP_FILE).write_bytes(as_warmup_file(samples))
    elif request.required:
        raise ModelError(
            f"there are no requests to compare the runtimes on in {request.saved_model}",
            hint="give --samples FILE.npz with rows of its inputs by name, or put "
            f"{WARMUP_FILE} into the version",
        )
    lacking = obstacle(request.saved_model)
    worth = _WORTH_FROZEN if lacking else _WORTH_LITERT
    if not samples:
        return _as_it_is(request, lacking or "there are no requests to compare answers on")
    if not request.required and _variables(request.saved_model) < worth:
        small = "it is small; 'timonel models optimize' measures it all the same"
        return _as_it_is(request, lacking or small)
    return _measured(request, samples, lacking)


def obstacle(version: Path, tags: Sequence[str] = ("serve",)) -> str | None:
    """Return why LiteRT cannot compute a SavedModel's graph, or None."""
    try:
        model = saved_model_pb2.SavedModel.FromString((version / "saved_model.pb").read_bytes())
    except (OSError, DecodeError):
        return "there is no saved_model.pb to convert"
    for meta_graph in model.meta_graphs:
        if set(meta_graph.meta_info_def.tags) == set(tags):
            found = _lacking(meta_graph)
            return f"LiteRT has no {', '.join(found)}" if found else None
    return f"it has no graph tagged {', '.join(tags)}"


def _samples(request: Request) -> list[Sample]:
    """Return requests from samples, else the warm-up file, else held-out examples."""
    if request.samples is not None:
        return samples_in(request.samples, signatures_in(request.saved_model, _TAGS))
    if found := samples_of(request.saved_model):
        return found
    if request.export is None:
        return []
    return held_out(request.export, request.examples, request.data_root)


def _as_it_is(request: Request, reason: str) -> Evidence:
    return Evidence(runtime="tensorflow", reason=reason, saved_model=identity(request.saved_model))


def _measured(request: Request, samples: Sequence[Sample], lacking: str | None) -> Evidence:
    # Use a server's threads: LiteRT must be faster than the alternative on a server.
    settings = RuntimeSettings(intra_op_threads=default_op_threads())
    try:
        check_folder(request.saved_model, settings.tags)
    except StatusError as error:
        return _as_it_is(request, error.message)
    theirs = TensorFlowRuntime().load(request.saved_model, settings)
    models: dict[Choice, LoadedModel] = {}
    impossible: dict[Choice, str] = {"litert": lacking} if lacking else {}
    differences: dict[Choice, tuple[float, ...]] = {}
    for way, make in _WAYS.items():
        if way in impossible:
            continue
        try:
            model = make(request, settings, theirs.signatures)
            found = compared(theirs, model, samples)
        except (StatusError, NotMadeError) as error:
            impossible[way] = str(getattr(error, "message", error))
            continue
        differences[way] = tuple(found)
        # Wrong answers need no timing.
        if all(each <= TOLERANCE for each in found):
            models[way] = model
    times = tuple(measured({"tensorflow": theirs, **models}, samples) if models else ())
    runtime, reason = decide(differences, impossible, times)
    made = None if runtime == "tensorflow" else digest_file(request.output / made_for(runtime))
    return Evidence(
        runtime=runtime,
        reason=reason,
        saved_model=identity(request.saved_model),
        converted=made,
        samples=len(samples),
        difference=max((each for some in differences.values() for each in some), default=None),
        measurements=times,
        versions={name: importlib.metadata.version(name) for name in _PACKAGES},
        cores=cores(),
    )


class NotMadeError(Exception):
    """The model could not be converted or frozen."""


def _flatbuffer(
    request: Request, settings: RuntimeSettings, signatures: Mapping[str, Signature]
) -> LoadedModel:
    content = converted(request.saved_model, settings.tags)
    path = request.output / CONVERTED
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return load_flatbuffer(content, settings, signatures)


def _frozen(request: Request, settings: RuntimeSettings, _: Mapping[str, Signature]) -> LoadedModel:
    content = (request.saved_model / "saved_model.pb").read_bytes()
    for graph in saved_model_pb2.SavedModel.FromString(content).meta_graphs:
        if set(graph.meta_info_def.tags) == set(settings.tags):
            protos = {name: each for name, each in graph.signature_def.items() if each.inputs}
            break
    else:
        raise NotMadeError("it has no such graph")
    try:
        made = _private.freeze(request.saved_model, settings.tags, protos)
    except Exception as error:
        # Any error means that the model stays as it is.
        first = next(iter(str(error).splitlines()), type(error).__name__)
        raise NotMadeError(f"its variables cannot be frozen: {first[:200]}") from error
    folder = request.output / FROZEN
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "saved_model.pb").write_bytes(made.SerializeToString())
    return TensorFlowRuntime().load(folder, settings)


_WAYS: dict[Choice, Callable[..., LoadedModel]] = {"litert": _flatbuffer, "frozen": _frozen}


def converted(version: Path, tags: Sequence[str]) -> bytes:
    """Return the flatbuffer of a SavedModel, with all its signatures.

    Raises:
        NotMadeError: The conversion failed, for example because LiteRT lacks an operation.
    """
    import tensorflow as tf  # noqa: PLC0415 - takes seconds; the request is read first

    try:
        converter = tf.lite.TFLiteConverter.from_saved_model(str(version), tags=set(tags))
        content: bytes = converter.convert()
    except Exception as error:
        # Any error means that the model stays as it is.
        raise NotMadeError(_reason(str(error))) from error
    return content


def _reason(text: str) -> str:
    found = {
        name.strip()
        for match in _REFUSED.finditer(text)
        for name in (match.group(1) or match.group(2)).split(",")
    }
    if found:
        return f"LiteRT has no {', '.join(sorted(found))}"
    first = next((line for line in text.splitlines() if line.strip()), "no message")
    return f"it cannot be converted: {first.strip()[:200]}"


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


def _variables(saved_model: Path) -> int:
    """Return the bytes of a SavedModel's variables."""
    return sum(path.stat().st_size for path in (saved_model / "variables").glob("*"))


def main(arguments: Sequence[str]) -> int:
    """Answer the request in the first file into the second.

    Returns:
        The exit code: 1 for an error.
    """
    request, answer = map(Path, arguments)
    try:
        found = choose(Request.model_validate_json(request.read_text()))
    except TimonelError as error:
        kind = type(error).__name__
        write_json(answer, {"error": error.message, "hint": error.hint, "kind": kind})
        return 1
    body: dict[str, Any] = found.model_dump(mode="json")
    write_json(answer, body)
    return 0


if __name__ == "__main__":
    end_with_parent()
    sys.exit(main(sys.argv[1:]))

"""Measuring process: ``python -m timonel.serving.selection.measuring_process REQUEST ANSWER``.

It converts a SavedModel to a flatbuffer, freezes its variables, and compares and times both with
TensorFlow on the same requests. The answer is an `Evidence`, or an error. Converting leaks memory,
so the process does nothing else. `timonel.models.runtime_choice` starts it.
"""

from __future__ import annotations

import importlib.metadata
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from timonel.errors import ModelError, SpecError
from timonel.models.child import answer_request, end_with_parent
from timonel.models.exports import ReferenceExample
from timonel.models.npz import read_npz, rows_of
from timonel.models.runtime_choice import (
    FLATBUFFER_FILE,
    FROZEN_DIR,
    Choice,
    Evidence,
    MeasuringRequest,
    file_of,
    identity_of,
)
from timonel.models.safety.graph import ModelGraph
from timonel.models.schema import WARMUP_FILE, Export
from timonel.serving.runtimes import _private
from timonel.serving.runtimes.base import LoadedModel
from timonel.serving.runtimes.litert import load_flatbuffer
from timonel.serving.runtimes.saved_model import (
    MAX_SAMPLES,
    Sample,
    as_warmup_file,
    meta_graph_of,
    samples_of,
    signatures_in,
)
from timonel.serving.runtimes.tensorflow import TensorFlowRuntime
from timonel.serving.selection.benchmark import TOLERANCE, compared, decide, measured
from timonel.serving.settings.batching import cores
from timonel.serving.settings.runtime import RuntimeSettings, default_op_threads
from timonel.serving.signature import (
    DEFAULT_SIGNATURE,
    INIT_OP,
    NUMPY_TYPES,
    STRING,
    Array,
    Signature,
)
from timonel.serving.status import StatusError
from timonel.storage import digest_file

_PACKAGES = ("tensorflow", "ai-edge-litert")
_TAGS = ("serve",)
_NO_SAMPLES = "no sample requests to measure other runtimes"
_MIN_LITERT_BYTES, _MIN_FROZEN_BYTES = 256 << 10, 4 << 20
"""Below these bytes of variables, computing takes less time than the rest of a request."""
_SINGLE_EXAMPLES, _BATCHED_EXAMPLES = 4, 16
_MAX_IMAGE_BYTES = 4 << 20
_UNSUPPORTED = re.compile(r"'?tf\.([A-Za-z0-9_]+)'? op is neither|ops: ([A-Za-z0-9_, ]+)")
"""Operations in the converter's error message."""
# Most models for files or rows hold operations that LiteRT lacks. Detecting this by converting them
# would take seconds for each export.
_MISSING = re.compile(
    r"(Decode(AndCrop|Jpeg|Png|Gif|Bmp|Image|Webp|Wav|CSV|Compressed|Base64|JSON|Proto)\w*"
    r"|Parse(Single)?(Sequence)?Example\w*|ParseTensor|AsString|Regex\w+|String\w+|Unicode\w+"
    r"|StaticRegex\w+|Substr|ReduceJoin|LookupTable\w+|(Eager)?PyFunc|XlaCallModule)"
)
_WRITES = re.compile(
    r"Assign\w*|(Sparse)?Apply\w+|Scatter(Nd)?(Add|Div|Max|Min|Mul|Sub|Update)|(Resource)?CountUpTo"
    r"|Resource(Apply|Scatter|SparseApply|StridedSliceAssign)\w*|Rng\w*Skip"
    r"|Stateful(Random|Standard|Truncated|Uniform)\w*|LookupTable(Insert|Remove)\w*"
)
"""Operations that write variables or tables."""


def choose(request: MeasuringRequest) -> Evidence:
    """Convert, compare, measure and choose."""
    samples = _samples(request)[:MAX_SAMPLES]
    # Others that take the same inputs may train the model at each load.
    warm_up = [sample for sample in samples if sample[0] == DEFAULT_SIGNATURE]
    if warm_up:
        (request.output / WARMUP_FILE).parent.mkdir(exist_ok=True)
        (request.output / WARMUP_FILE).write_bytes(as_warmup_file(warm_up))
    if not samples and request.required:
        raise ModelError(
            f"{request.saved_model} has no requests to compare the runtimes on",
            hint="pass --samples FILE.npz with rows of its inputs by name, or add "
            f"{WARMUP_FILE} to the version",
        )
    impossible = obstacles(request.saved_model)
    reason = impossible.get("litert")
    if not samples or "frozen" in impossible:
        return _unchanged(request, reason or _NO_SAMPLES)
    min_bytes = _MIN_FROZEN_BYTES if reason else _MIN_LITERT_BYTES
    variables = (request.saved_model / "variables").glob("*")
    if not request.required and sum(path.stat().st_size for path in variables) < min_bytes:
        small = "it is small; to measure it anyway, run 'timonel models optimize'"
        return _unchanged(request, reason or small)
    return _measured(request, samples, impossible)


def obstacles(version: Path) -> dict[Choice, str]:
    """Return the reasons why runtimes other than TensorFlow cannot compute a SavedModel."""
    try:
        meta_graph = meta_graph_of(version, _TAGS)
    except (OSError, DecodeError):
        return {"litert": "there is no saved_model.pb to convert"}
    if meta_graph is None:
        return {"litert": f"it has no graph tagged {', '.join(_TAGS)}"}
    graph = ModelGraph(meta_graph)
    roots = [
        info.name
        for name, signature in meta_graph.signature_def.items()
        if name != INIT_OP
        for info in signature.outputs.values()
    ]
    running = graph.reached_from(roots)
    operations = {node.op for scope, node in graph.nodes() if (scope, node.name) in running}
    if writes := sorted(filter(_WRITES.fullmatch, operations)):
        # Each interpreter would have a state of its own, and a frozen graph has none.
        reason = f"requests change its state ({', '.join(writes)})"
        return {"litert": reason, "frozen": reason}
    missing = sorted(filter(_MISSING.fullmatch, operations))
    return {"litert": f"LiteRT has no {', '.join(missing)}"} if missing else {}


def _samples(request: MeasuringRequest) -> list[Sample]:
    """Return requests from samples, else the warm-up file, else held-out examples."""
    if request.samples is not None:
        return samples_in(request.samples, signatures_in(request.saved_model, _TAGS))
    if found := samples_of(request.saved_model):
        return found
    if request.export is None:
        return []
    return held_out(request.export, request.examples, request.data_root)


def _unchanged(request: MeasuringRequest, reason: str) -> Evidence:
    return Evidence(
        runtime="tensorflow", reason=reason, saved_model=identity_of(request.saved_model)
    )


def _measured(
    request: MeasuringRequest, samples: Sequence[Sample], impossible: dict[Choice, str]
) -> Evidence:
    # Use a server's threads: LiteRT must be faster than the alternative on a server.
    settings = RuntimeSettings(intra_op_threads=default_op_threads())
    try:
        theirs = TensorFlowRuntime().load(request.saved_model, settings)
    except StatusError as error:
        if request.required:
            raise ModelError(f"cannot load {request.saved_model}: {error.message}") from error
        return _unchanged(request, error.message)
    models: dict[Choice, LoadedModel] = {}
    differences: dict[Choice, tuple[float, ...]] = {}
    for choice, convert in _CONVERSIONS.items():
        if choice in impossible:
            continue
        try:
            model = convert(request, settings, theirs.signatures)
            found = compared(theirs, model, samples)
        except (StatusError, ConversionError) as error:
            impossible[choice] = error.message
            continue
        differences[choice] = tuple(found)
        # Wrong answers need no timing.
        if all(each <= TOLERANCE for each in found):
            models[choice] = model
    times = tuple(measured({"tensorflow": theirs, **models}, samples) if models else ())
    runtime, reason = decide(differences, impossible, times)
    digest = None if runtime == "tensorflow" else digest_file(request.output / file_of(runtime))
    return Evidence(
        runtime=runtime,
        reason=reason,
        saved_model=identity_of(request.saved_model),
        converted=digest,
        samples=len(samples),
        difference=max((each for some in differences.values() for each in some), default=None),
        measurements=times,
        versions={name: importlib.metadata.version(name) for name in _PACKAGES},
        cores=cores(),
    )


class ConversionError(ModelError):
    """The model could not be converted or frozen."""


def _flatbuffer(
    request: MeasuringRequest, settings: RuntimeSettings, signatures: Mapping[str, Signature]
) -> LoadedModel:
    content = converted(request.saved_model, settings.tags)
    path = request.output / FLATBUFFER_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return load_flatbuffer(content, settings, signatures)


def _frozen(
    request: MeasuringRequest, settings: RuntimeSettings, _: Mapping[str, Signature]
) -> LoadedModel:
    try:
        graph = meta_graph_of(request.saved_model, settings.tags)
        protos = {name: each for name, each in graph.signature_def.items() if each.inputs}
        made = _private.freeze(request.saved_model, settings.tags, protos)
    except Exception as error:
        # Any error means that the model stays as it is.
        first = next(iter(str(error).splitlines()), type(error).__name__)
        raise ConversionError(f"its variables cannot be frozen: {first[:200]}") from error
    folder = request.output / FROZEN_DIR
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "saved_model.pb").write_bytes(made.SerializeToString())
    return TensorFlowRuntime().load(folder, settings)


_CONVERSIONS: dict[Choice, Callable[..., LoadedModel]] = {"litert": _flatbuffer, "frozen": _frozen}


def converted(version: Path, tags: Sequence[str]) -> bytes:
    """Return the flatbuffer of a SavedModel, with all its signatures."""
    import tensorflow as tf  # noqa: PLC0415 - takes seconds; the request is read first

    try:
        converter = tf.lite.TFLiteConverter.from_saved_model(str(version), tags=set(tags))
        content: bytes = converter.convert()
    except Exception as error:
        # Any error means that the model stays as it is.
        raise ConversionError(_reason(str(error))) from error
    return content


def _reason(text: str) -> str:
    found = {
        name.strip()
        for match in _UNSUPPORTED.finditer(text)
        for name in (match.group(1) or match.group(2)).split(",")
    }
    if found:
        return f"LiteRT has no {', '.join(sorted(found))}"
    first = next((line for line in text.splitlines() if line.strip()), "no message")
    return f"it cannot be converted: {first.strip()[:200]}"


def samples_in(file: Path, signatures: Mapping[str, Signature]) -> list[Sample]:
    """Return the requests in an ``.npz`` file with one array per input.

    Each row is a request to every signature with these inputs.
    """
    arrays = read_npz(file)
    found: list[Sample] = []
    for name, signature in signatures.items():
        if arrays.keys() == signature.inputs.keys():
            typed = {key: _typed(key, array, signature) for key, array in arrays.items()}
            found += [(name, row) for row in rows_of(typed, _BATCHED_EXAMPLES)]
    if not found:
        inputs = "; ".join(
            f"{name} takes {', '.join(each.inputs)}"
            for name, each in signatures.items()
            if each.inputs
        )
        raise SpecError(
            f"the arrays in {file} match no signature: {', '.join(arrays)}",
            hint=inputs,
        )
    return found


def held_out(
    export: Export, examples: Sequence[ReferenceExample], data_root: Path | None = None
) -> list[Sample]:
    """Return held-out examples for ``serving_default``, as single requests and one batch."""
    rows = list(_raw_rows(export, examples, data_root))
    singles: list[Sample] = [(DEFAULT_SIGNATURE, row) for row in rows[:_SINGLE_EXAMPLES]]
    if len(rows) <= 1:
        return singles
    together = {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
    return [*singles, (DEFAULT_SIGNATURE, together)]


def _raw_rows(
    export: Export, examples: Sequence[ReferenceExample], data_root: Path | None
) -> Iterator[dict[str, Array]]:
    signature = export.signatures.get(DEFAULT_SIGNATURE)
    if signature is None or export.preparation.input_kind == "tensor":
        return
    left = _MAX_IMAGE_BYTES
    for example in examples[:_BATCHED_EXAMPLES]:
        if export.preparation.input_kind == "table":
            source = example.source if isinstance(example.source, Mapping) else {}
            yield {
                name: _cell(source.get(name), tensor.dtype)
                for name, tensor in signature.inputs.items()
            }
            continue
        content = example.read_file(data_root)
        left -= len(content or b"")
        if content and left >= 0:
            (name,) = signature.inputs
            yield {name: np.array([content], dtype=object)}


def _cell(value: Any, dtype: str) -> Array:
    if dtype == "string":
        return np.array([b"" if value is None else str(value).encode()], dtype=object)
    return np.array([float("nan") if value in {None, ""} else float(value)], dtype=np.float32)


def _typed(name: str, array: Array, signature: Signature) -> Array:
    dtype = signature.inputs[name].dtype
    if dtype == STRING:
        texts = [each.encode() if isinstance(each, str) else each for each in array.flat]
        return np.array(texts, dtype=object).reshape(array.shape)
    return array.astype(NUMPY_TYPES[dtype])


def main(arguments: Sequence[str]) -> int:
    """Answer the request in the first file into the second."""
    return answer_request(arguments, MeasuringRequest, choose)


if __name__ == "__main__":
    end_with_parent()
    sys.exit(main(sys.argv[1:]))

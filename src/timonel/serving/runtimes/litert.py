"""Runtime for LiteRT (TensorFlow Lite): flatbuffers, computed by XNNPACK in this process.

A file can hold signatures in two places. TensorFlow's converter writes a table of names and
tensors, with one subgraph per signature. Older files have a metadata buffer with SignatureDefs,
which name tensors of the first subgraph; TensorFlow Serving reads only this buffer. A file may have
neither.
"""

from __future__ import annotations

import queue
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from timonel.models.flatbuffers import forget_state
from timonel.models.inspection import TFLITE_FILE
from timonel.models.runtime_choice import FLATBUFFER_FILE, chosen_runtime
from timonel.serving.protos.messages import meta_graph_pb2
from timonel.serving.runtimes.base import LoadedModel, Runtime
from timonel.serving.runtimes.saved_model import signatures_in
from timonel.serving.settings.batching import cores
from timonel.serving.settings.runtime import LITERT, RuntimeSettings
from timonel.serving.signature import (
    DEFAULT_SIGNATURE,
    DTYPE_NAMES,
    PREDICT,
    STRING,
    Array,
    Signature,
    TensorSpec,
    fits,
)
from timonel.serving.status import Code, StatusError, invalid_argument, not_found

_METADATA = b"signature_defs_metadata"
_Tensors = Mapping[str, Mapping[str, Any]]
"""LiteRT's details of tensors, by the client's names."""


class LiteRtRuntime(Runtime):
    """Loads a version's flatbuffer: converted from its SavedModel, else ``model.tflite``."""

    name = LITERT

    def load(self, path: Path, settings: RuntimeSettings) -> LoadedModel:
        """Load the flatbuffer in ``path``."""
        # As users of TensorFlow Serving expect: only that file, and the signatures of its metadata.
        as_tensorflow_serving = settings.prefer_tflite
        places = [path / TFLITE_FILE]
        if not as_tensorflow_serving and chosen_runtime(path) == self.name:
            places.insert(0, path / FLATBUFFER_FILE)
        file = next((place for place in places if place.is_file()), None)
        if file is None:
            raise not_found(
                f"There is no {TFLITE_FILE} in {path}; convert one by 'timonel models optimize'"
            )
        content = file.read_bytes()
        if file != path / TFLITE_FILE:
            return load_flatbuffer(content, settings, signatures_in(path, settings.tags))
        first = _Interpreter(content, settings)
        model = _FlatbufferModel(
            content, settings, first, first.entries(content, is_tabled=not as_tensorflow_serving)
        )
        model.signatures = {name: _resizable(each) for name, each in model.signatures.items()}
        return model


def load_flatbuffer(
    content: bytes, settings: RuntimeSettings, signatures: Mapping[str, Signature]
) -> LoadedModel:
    """Load a flatbuffer converted from a SavedModel, with the SavedModel's signatures."""
    first = _Interpreter(content, settings)
    entries = first.entries(content)
    for name, signature in signatures.items():
        if signature.inputs and signature.outputs:
            entry = entries.get(name)
            if entry is None or not _is_like(entry.signature, signature):
                raise invalid_argument(
                    f"the flatbuffer lacks signature {name}, or its tensors differ"
                )
    known = {
        name: replace(each, signature=signatures[name])
        for name, each in entries.items()
        if name in signatures
    }
    return _FlatbufferModel(content, settings, first, known)


@dataclass(frozen=True)
class _Entry:
    """A callable signature of a file, with the numbers of its tensors in the first subgraph.

    ``key`` is its name in the file's own table; None if the first subgraph is called.
    """

    signature: Signature
    key: str | None
    inputs: Mapping[str, int]
    outputs: Mapping[str, int]


class _FlatbufferModel(LoadedModel):
    """A flatbuffer, and a pool of interpreters for concurrent requests.

    Each interpreter is used by one thread at a time, and is created when first needed. By default
    each computes with one thread: on concurrent requests, one interpreter per core has more
    throughput than one interpreter on all cores.
    """

    def __init__(
        self,
        content: bytes,
        settings: RuntimeSettings,
        first: _Interpreter,
        entries: Mapping[str, _Entry],
    ) -> None:
        self.signatures = {name: entry.signature for name, entry in entries.items()}
        self._content = content
        self._settings = settings
        self._entries = entries
        interpreters = settings.interpreters or max(1, cores() // (settings.intra_op_threads or 1))
        if _writes_variables(content):
            # Each interpreter has its own, and requests must find one state, as in TensorFlow.
            interpreters = 1
        # LIFO: the interpreter used last has its memory in the caches.
        self._idle: queue.LifoQueue[_Interpreter | None] = queue.LifoQueue()
        for _ in range(interpreters - 1):
            self._idle.put(None)
        self._idle.put(first)

    @property
    def platform(self) -> str:
        return "litert_tflite"

    def run(
        self, signature: str, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None
    ) -> dict[str, Array]:
        entry = self._entries[signature]
        interpreter: _Interpreter | None = self._idle.get()
        try:
            interpreter = interpreter or _Interpreter(self._content, self._settings)
            answer = interpreter.run(entry, inputs)
        except BaseException:
            # The interpreter's state is unknown, so the next request gets a fresh one.
            interpreter = None
            raise
        finally:
            self._idle.put(interpreter)
        return {name: answer[name] for name in (answer if outputs is None else outputs)}

    def close(self) -> None:
        while not self._idle.empty():
            self._idle.get_nowait()
        self._content = b""


class _Interpreter:
    """A LiteRT interpreter with calls by tensor names."""

    def __init__(self, content: bytes, settings: RuntimeSettings) -> None:
        from ai_edge_litert import interpreter as litert  # noqa: PLC0415 - slow to import

        if content[4:8] != b"TFL3":
            raise invalid_argument("the file is not a TensorFlow Lite model")
        threads = settings.intra_op_threads or 1
        try:
            self._own = litert.Interpreter(model_content=content, num_threads=threads)
            self._own.allocate_tensors()
        except (RuntimeError, ValueError) as error:
            # For example, the model has an operation that only TensorFlow supports.
            raise StatusError(Code.INVALID_ARGUMENT, _text(error)) from error
        self._runners: dict[str, Any] = {}

    def entries(self, content: bytes, *, is_tabled: bool = True) -> dict[str, _Entry]:
        """Return the callable signatures of the file, by name.

        Args:
            content: The file, which the interpreter has verified.
            is_tabled: Whether the file's own table of signatures counts.
        """
        own = self._own
        try:
            described = _metadata_in(content)
        except (IndexError, TypeError, ValueError, AttributeError, struct.error) as error:
            raise invalid_argument(f"the metadata of the model is damaged: {error}") from error
        entries = {name: _described(name, each, own) for name, each in described}
        if not entries and is_tabled:
            for key in own.get_signature_list():
                run = own.get_signature_runner(key)
                inputs, outputs = run.get_input_details(), run.get_output_details()
                entries[key] = _entry(key, inputs, outputs, key=key)
        if not entries:
            inputs, outputs = (
                {each["name"].partition(":")[0]: each for each in tensors}
                for tensors in (own.get_input_details(), own.get_output_details())
            )
            entries[DEFAULT_SIGNATURE] = _entry(DEFAULT_SIGNATURE, inputs, outputs)
        return entries

    def run(self, entry: _Entry, inputs: Mapping[str, Array]) -> dict[str, Array]:
        try:
            values = self._call(entry, inputs)
        except (TypeError, ValueError, OverflowError) as error:
            raise StatusError(Code.INVALID_ARGUMENT, _text(error)) from error
        except RuntimeError as error:
            specs = entry.signature.inputs
            fitting = all(fits(spec.shape, inputs[name].shape) for name, spec in specs.items())
            code = Code.INTERNAL if fitting else Code.INVALID_ARGUMENT
            raise StatusError(code, _text(error)) from error
        return {name: np.asarray(value) for name, value in values.items()}

    def _call(self, entry: _Entry, inputs: Mapping[str, Array]) -> Mapping[str, Any]:
        forget_state(self._own)  # of another client's request
        if entry.key is not None:
            runner = self._runners.get(entry.key)
            if runner is None:
                runner = self._runners[entry.key] = self._own.get_signature_runner(entry.key)
            values: Mapping[str, Any] = runner(**inputs)
            return values
        own = self._own
        for name, number in entry.inputs.items():
            own.resize_tensor_input(number, inputs[name].shape)
        own.allocate_tensors()
        for name, number in entry.inputs.items():
            own.set_tensor(number, inputs[name])
        own.invoke()
        return {name: own.get_tensor(number) for name, number in entry.outputs.items()}


def _metadata_in(content: bytes) -> list[tuple[str, Any]]:
    """Return the names and the SignatureDefs in the metadata of a file."""
    from ai_edge_litert import schema_py_generated as schema  # noqa: PLC0415 - slow to import

    model = schema.Model.GetRootAs(content, 0)
    for entry in map(model.Metadata, range(model.MetadataLength())):
        if entry.Name() == _METADATA:
            from flatbuffers import flexbuffers  # noqa: PLC0415 - hardly ever needed

            packed = model.Buffers(entry.Buffer()).DataAsNumpy().tobytes()
            found = flexbuffers.GetRoot(packed).AsMap
            texts = (value.AsStringBytes for value in found.Values)
            protos = map(meta_graph_pb2.SignatureDef.FromString, texts)
            return list(zip((key.AsKey for key in found.Keys), protos, strict=True))
    return []


def _writes_variables(content: bytes) -> bool:
    """Return whether requests assign resource variables; initial assignments run once."""
    from ai_edge_litert import schema_py_generated as schema  # noqa: PLC0415 - slow to import

    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(content, 0))
    kinds = [code.builtinCode for code in model.operatorCodes or ()]
    writing, initial = set(), set()
    for number, graph in enumerate(model.subgraphs or ()):
        for operator in graph.operators or ():
            kind = kinds[operator.opcodeIndex]
            if kind == schema.BuiltinOperator.ASSIGN_VARIABLE:
                writing.add(number)
            elif kind == schema.BuiltinOperator.CALL_ONCE:
                initial.add(operator.builtinOptions.initSubgraphIndex)
    return bool(writing - initial)


def _described(name: str, proto: Any, interpreter: Any) -> _Entry:
    """Return the signature of a SignatureDef."""
    tensors = {each["name"]: each for each in interpreter.get_tensor_details()}

    def named(tensor: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] | None = tensors.get(tensor) or tensors.get(
            tensor.partition(":")[0]
        )
        if found is None:
            raise invalid_argument(f"the TensorFlow Lite model has no tensor {tensor}")
        return found

    inputs, outputs = (
        {alias: named(info.name) for alias, info in infos.items()}
        for infos in (proto.inputs, proto.outputs)
    )
    return _entry(name, inputs, outputs, method=proto.method_name)


def _entry(
    name: str,
    inputs: _Tensors,
    outputs: _Tensors,
    *,
    key: str | None = None,
    method: str = PREDICT,
) -> _Entry:
    of_inputs, of_outputs = (
        {alias: _spec(each) for alias, each in sorted(tensors.items())}
        for tensors in (inputs, outputs)
    )
    numbers = (
        {alias: int(each["index"]) for alias, each in tensors.items()}
        for tensors in (inputs, outputs)
    )
    return _Entry(Signature(name, of_inputs, of_outputs, method_name=method), key, *numbers)


def _spec(tensor: Mapping[str, Any]) -> TensorSpec:
    name, kind = tensor["name"], tensor["dtype"]
    dtype = STRING if kind is np.bytes_ else kind and DTYPE_NAMES.get(np.dtype(kind))
    if not dtype:
        raise invalid_argument(f"tensor {name} has type {kind}, which clients cannot send")
    return TensorSpec(name, dtype, tuple(map(int, tensor["shape_signature"])))


def _resizable(signature: Signature) -> Signature:
    """Return a signature with inputs of any batch size: interpreters resize theirs."""

    def resizable(spec: TensorSpec) -> TensorSpec:
        shape = spec.shape or ()
        return replace(spec, shape=(-1, *shape[1:])) if shape[:1] == (1,) else spec

    inputs = {name: resizable(spec) for name, spec in signature.inputs.items()}
    return replace(signature, inputs=inputs)


def _is_like(ours: Signature, theirs: Signature) -> bool:
    """Return whether two signatures have the same inputs and outputs.

    Internal tensors may differ. Only a SavedModel has default values of inputs.
    """
    return not theirs.defaults and all(
        {name: (spec.dtype, spec.shape) for name, spec in mine.items()}
        == {name: (spec.dtype, spec.shape) for name, spec in yours.items()}
        for mine, yours in ((ours.inputs, theirs.inputs), (ours.outputs, theirs.outputs))
    )


def _text(error: Exception) -> str:
    return str(error).strip() or type(error).__name__

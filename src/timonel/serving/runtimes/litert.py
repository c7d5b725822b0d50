"""Runtime for LiteRT (TensorFlow Lite): flatbuffers, computed by XNNPACK in this process."""

from __future__ import annotations

import queue
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from timonel.models.runtime_choice import FLATBUFFER_FILE, chosen_runtime
from timonel.serving.runtimes.base import LoadedModel, Runtime
from timonel.serving.runtimes.saved_model import signatures_in
from timonel.serving.runtimes.tflite_file import FlatbufferSignature, entries_in
from timonel.serving.settings import RuntimeSettings
from timonel.serving.settings.batching import cores
from timonel.serving.settings.runtime import LITERT, TFLITE_FILE
from timonel.serving.signature import Array, Signature, TensorSpec, fits
from timonel.serving.status import Code, StatusError, invalid_argument, not_found


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
        entries = entries_in(content, as_tensorflow_serving=as_tensorflow_serving)
        model = _FlatbufferModel(content, entries, settings)
        model.signatures = {name: _resizable(each) for name, each in model.signatures.items()}
        return model


def load_flatbuffer(
    content: bytes, settings: RuntimeSettings, signatures: Mapping[str, Signature]
) -> LoadedModel:
    """Load a flatbuffer converted from a SavedModel, with the SavedModel's signatures.

    Args:
        content: The flatbuffer.
        settings: The compute settings.
        signatures: The signatures of the SavedModel.

    Raises:
        StatusError: The flatbuffer lacks one of them.
    """
    entries = entries_in(content)
    for name, signature in signatures.items():
        if signature.inputs and signature.outputs:
            entry = entries.get(name)
            if entry is None or not _is_like(entry.signature, signature):
                raise invalid_argument(
                    f"the flatbuffer lacks signature {name}, or its tensors differ"
                )
    known = {
        name: FlatbufferSignature(signatures[name], each.key, each.inputs, each.outputs)
        for name, each in entries.items()
        if name in signatures
    }
    return _FlatbufferModel(content, known, settings)


class _FlatbufferModel(LoadedModel):
    """A flatbuffer, and a pool of interpreters for concurrent requests.

    Each interpreter is used by one thread at a time, and is created when first needed. By default
    each computes with one thread: on concurrent requests, one interpreter per core has more
    throughput than one interpreter on all cores.
    """

    def __init__(
        self, content: bytes, entries: Mapping[str, FlatbufferSignature], settings: RuntimeSettings
    ) -> None:
        self.signatures = {name: entry.signature for name, entry in entries.items()}
        self._content = content
        self._entries = entries
        self._threads = settings.intra_op_threads or 1
        interpreters = settings.interpreters or max(1, cores() // self._threads)
        # LIFO: the interpreter used last has its memory in the caches.
        self._idle: queue.LifoQueue[_Interpreter | None] = queue.LifoQueue()
        for _ in range(interpreters - 1):
            self._idle.put(None)
        self._idle.put(self._make())

    @property
    def platform(self) -> str:
        return "litert_tflite"

    def run(
        self, signature: str, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None
    ) -> dict[str, Array]:
        entry = self._entries[signature]
        interpreter: _Interpreter | None = self._idle.get()
        try:
            interpreter = interpreter or self._make()
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

    def _make(self) -> _Interpreter:
        return _Interpreter(self._content, self._threads)


class _Interpreter:
    """A LiteRT interpreter with calls by tensor names."""

    def __init__(self, content: bytes, threads: int) -> None:
        from ai_edge_litert import interpreter as litert  # noqa: PLC0415 - slow to import

        try:
            self._own = litert.Interpreter(model_content=content, num_threads=threads)
            self._own.allocate_tensors()
        except (RuntimeError, ValueError) as error:
            # For example, the model has an operation that only TensorFlow supports.
            raise StatusError(Code.INVALID_ARGUMENT, _text(error)) from error
        self._runners: dict[str, Any] = {}

    def run(self, entry: FlatbufferSignature, inputs: Mapping[str, Array]) -> dict[str, Array]:
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

    def _call(self, entry: FlatbufferSignature, inputs: Mapping[str, Array]) -> Mapping[str, Any]:
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

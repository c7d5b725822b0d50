"""Runtime for Python models: a class in a version's ``model.py``.

<name>/<version>/
  model.py        the class PythonModel
  ...             files that it reads: weights, tables, further modules
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from timonel.models.inspection import PYTHON_MODEL_CLASS, PYTHON_MODEL_FILE
from timonel.serving.runtimes.base import DeclaringModel, LoadedModel, Runtime
from timonel.serving.runtimes.python.code import PythonFile
from timonel.serving.runtimes.python.declaration import check_inputs, declared, fitted, refusal
from timonel.serving.settings.runtime import RuntimeSettings
from timonel.serving.signature import DEFAULT_SIGNATURE, Array, Signature
from timonel.serving.status import not_found

Predict = Callable[[dict[str, Array]], Any]


class PythonModel(Protocol):
    """Interface of the class in ``model.py``; deriving from this class is optional.

    `inputs` and `outputs` map names to a data type and a shape, such as ``("float32", [None, 4])``;
    `load` may set them. Further signatures are declared in ``signatures``, a mapping from their
    names to pairs of inputs and outputs, and computed by methods of these names. Two more
    attributes are optional: ``batchable`` (false), whether rows of different requests may be
    computed in one batch, and ``threads`` (1), the number of concurrent calls.
    """

    inputs: Mapping[str, tuple[Any, Sequence[int | None] | None]]
    outputs: Mapping[str, tuple[Any, Sequence[int | None] | None]]

    def load(self, directory: Path) -> None:
        """Read the files that the model needs from the version's folder. Optional."""

    def predict(self, inputs: dict[str, Array]) -> Mapping[str, Any]:
        """Return the outputs by name.

        Args:
            inputs: Arrays of the declared types and shapes, which may be changed in place; strings
                are object arrays of bytes.

        Raises:
            ValueError: The client's values are invalid; the client gets the message. Any other
                exception counts as a failure of the model.
        """


class PythonRuntime(Runtime):
    """Loads a Python model. For a process with a single version."""

    name = "python"

    def load(self, path: Path, settings: RuntimeSettings) -> LoadedModel:  # noqa: ARG002 - threads and tags are up to the code
        """Load the class in ``model.py``."""
        file = path / PYTHON_MODEL_FILE
        if not file.is_file():
            raise not_found(f"there is no {PYTHON_MODEL_FILE} in {path}")
        source = PythonFile(file)
        maker = getattr(source.module, PYTHON_MODEL_CLASS, None)
        if not isinstance(maker, type):
            raise refusal(f"{PYTHON_MODEL_FILE} defines no class {PYTHON_MODEL_CLASS}")
        model = source.prepare(maker, f"creating {PYTHON_MODEL_CLASS}")
        if hasattr(model, "load"):
            source.prepare(lambda: model.load(path), "load")
        return _Loaded(model, source)


class _Loaded(DeclaringModel):
    def __init__(self, model: Any, source: PythonFile) -> None:
        self._source = source
        signatures: dict[str, Signature] = {}
        self._methods: dict[str, tuple[str, Predict]] = {}
        for name, method, inputs, outputs in _declarations(model):
            where = source.name if name == DEFAULT_SIGNATURE else f"{name} in {source.name}"
            signatures[name] = declared(name, inputs, outputs, where=where)
            self._methods[name] = method, _method(model, method)
        self.signatures = signatures
        self.batchable = bool(getattr(model, "batchable", False))
        self.slots = _threads(getattr(model, "threads", 1))
        self._turn = threading.BoundedSemaphore(self.slots)

    @property
    def platform(self) -> str:
        return "python"

    def run(
        self, signature: str, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None
    ) -> dict[str, Array]:
        spec, (name, method) = self.signatures[signature], self._methods[signature]
        check_inputs(inputs, spec.inputs)
        # The code may change its inputs in place, while others still read them.
        copies = {key: inputs[key].copy() for key in spec.inputs}
        with self._turn:
            given = self._source.call(method, copies, name)
        found = fitted(given, spec.outputs, giver=name)
        return {key: found[key] for key in outputs or found}

    def close(self) -> None:
        self._methods.clear()


def _declarations(model: Any) -> list[tuple[str, str, Any, Any]]:
    """Return name, method, inputs and outputs of each signature."""
    found = []
    if hasattr(model, "inputs") or not hasattr(model, "signatures"):
        inputs, outputs = getattr(model, "inputs", None), getattr(model, "outputs", None)
        found.append((DEFAULT_SIGNATURE, "predict", inputs, outputs))
    further = getattr(model, "signatures", {})
    try:
        for name, (inputs, outputs) in dict(further).items():
            method = "predict" if name == DEFAULT_SIGNATURE else str(name)
            found.append((str(name), method, inputs, outputs))
    except (TypeError, ValueError):
        raise refusal(
            f"signatures of {PYTHON_MODEL_CLASS} must map names to pairs of inputs and outputs, "
            f"got {further!r}"
        ) from None
    return found


def _method(model: Any, name: str) -> Predict:
    method = getattr(model, name, None)
    if not callable(method):
        raise refusal(f"{PYTHON_MODEL_CLASS} in {PYTHON_MODEL_FILE} has no method {name}")
    return method  # type: ignore[no-any-return]  # the user's class is untyped


def _threads(value: Any) -> int:
    if not isinstance(value, int) or value < 1:
        raise refusal(f"threads of {PYTHON_MODEL_CLASS} must be 1 or more, got {value!r}")
    return value

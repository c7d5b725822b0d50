"""Process of `add_model`: ``python -m timonel.models.adding_process REQUEST ANSWER``.

Exports a Keras file, and sends one request to a model. Only this process imports TensorFlow.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from pydantic import Field

from timonel.errors import ModelError
from timonel.models.child import answer_request, end_with_parent
from timonel.models.exports import saved_model_of
from timonel.models.inspection import TFLITE_FILE, is_flatbuffer, signatures_of
from timonel.models.safety.check import UnreadableModelError, check_saved_model
from timonel.models.safety.keras_config import calls_of
from timonel.models.schema import StoredDocument, StoredSignature

KERAS_ENDINGS = (".keras", ".h5", ".hdf5")
_UNSAVED = ("does not exist", "uninitialized")
"""Words of TensorFlow's errors about variables that a SavedModel lacks."""


class AddRequest(StoredDocument):
    """Request to the process."""

    source: Path = Field(description="A Keras file, or the folder of a SavedModel or flatbuffer.")
    name: str = Field(description="The model's place, for messages.")
    target: Path | None = Field(description="Folder for the export of a Keras file.")


class Trial(StoredDocument):
    """Result of one request."""

    failure: str | None = Field(description="Why there is no answer; null if there is one.")


def answer(request: AddRequest) -> Trial:
    """Export the model if needed, and send one request to it."""
    if request.target is not None:
        _export(request)
        return Trial(failure=_ask_saved_model(saved_model_of(request.target), request.name))
    if is_flatbuffer(request.source):
        return Trial(failure=_ask_flatbuffer(request.source / TFLITE_FILE, request.name))
    return Trial(failure=_ask_saved_model(request.source, request.name))


def _export(request: AddRequest) -> None:
    from timonel.models.savedmodel import export_live  # noqa: PLC0415 - imports TensorFlow

    is_legacy = os.environ.get("TF_USE_LEGACY_KERAS", "").lower() in {"1", "true"}
    keras = importlib.import_module("tf_keras" if is_legacy else "keras")
    try:
        # Unsafe layers, which would run Python code of the file, are refused by default.
        with _refusing_code(keras.__name__, request.source):
            model = keras.models.load_model(str(request.source), compile=False)
    except Exception as error:
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        if first.startswith("No model config"):
            raise ModelError(
                f"{request.name} holds weights only", hint="save the whole model with model.save"
            ) from error
        raise ModelError(
            f"{keras.__name__} cannot load {request.name}: {first[:300]}",
            hint="with layers of your own, or of another Keras: call model.export('FOLDER') where "
            "they are defined, and add that folder",
        ) from error
    assert request.target is not None
    export_live(
        model,
        request.target,
        preprocessing=None,
        labels=None,
        input_kind="tensor",
        label_mode=None,
        note="a Keras file holds no transforms of raw input",
    )


def _refusing_code(keras: str, source: Path) -> AbstractContextManager[Any]:
    """Return a context in which tf-keras runs no code of a file, as Keras 3 never does."""
    if keras == "keras":
        return nullcontext()
    if (call := next(calls_of(source), None)) is not None:
        raise ValueError(f"it would call {call}")
    library: Any = importlib.import_module(f"{keras}.src.saving.serialization_lib")
    scope: AbstractContextManager[Any] = library.SafeModeScope(True)
    return scope


def _ask_saved_model(folder: Path, name: str) -> str | None:
    """Send a SavedModel one request, as a server would; return why there is no answer."""
    import tensorflow as tf  # noqa: PLC0415 - takes seconds

    try:
        check_saved_model(folder)
    except UnreadableModelError:
        raise
    except ModelError as error:
        return f"no request was sent: {error.message}"
    signature = next(iter(_callable(signatures_of(folder)).items()), None)
    if signature is None:
        return "no request was sent: the model has no signature with inputs of a known rank"
    key, _ = signature
    try:
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            meta = tf.compat.v1.saved_model.load(session, ["serve"], str(folder))
            found = meta.signature_def[key]
            feed = {each.name: _empty(each) for each in found.inputs.values()}
            session.run({name: each.name for name, each in found.outputs.items()}, feed)
    except (tf.errors.FailedPreconditionError, tf.errors.NotFoundError) as error:
        if not any(words in str(error) for words in _UNSAVED):
            return _failure(key, error)
        raise ModelError(
            f"{name} was saved without its variables: {_first_line(error)}",
            hint="tf.saved_model.save does not find those of Keras 3: save with "
            "model.export('FOLDER'), or set TF_USE_LEGACY_KERAS=1",
        ) from error
    except (tf.errors.InvalidArgumentError, tf.errors.OutOfRangeError) as error:
        return _failure(key, error)  # an empty text is no image, for example
    except (tf.errors.OpError, OSError, ValueError, RuntimeError) as error:
        raise ModelError(f"{name} cannot be loaded: {_first_line(error)}") from error
    return None


def _callable(signatures: Mapping[str, StoredSignature]) -> dict[str, StoredSignature]:
    """Return the signatures that take an example, the default one first."""
    known = {
        key: each
        for key, each in signatures.items()
        if each.inputs and all(info.shape is not None for info in each.inputs.values())
    }
    return dict(sorted(known.items(), key=lambda item: item[0] != "serving_default"))


def _empty(tensor: Any) -> Any:
    import numpy as np  # noqa: PLC0415
    import tensorflow as tf  # noqa: PLC0415 - imported by the caller already

    sizes = [max(1, dim.size) for dim in tensor.tensor_shape.dim]
    dtype = tf.as_dtype(tensor.dtype)
    return (
        np.full(sizes, b"", object) if dtype == tf.string else np.zeros(sizes, dtype.as_numpy_dtype)
    )


def _ask_flatbuffer(file: Path, name: str) -> str | None:
    import numpy as np  # noqa: PLC0415
    from ai_edge_litert.interpreter import Interpreter  # noqa: PLC0415

    try:
        interpreter = Interpreter(model_path=str(file))
        interpreter.allocate_tensors()
        for each in interpreter.get_input_details():
            interpreter.set_tensor(each["index"], np.zeros(each["shape"], each["dtype"]))
    except (ValueError, RuntimeError) as error:
        raise ModelError(f"{name} cannot be loaded: {_first_line(error)}") from error
    try:
        interpreter.invoke()
    except (ValueError, RuntimeError) as error:
        return _failure("its first subgraph", error)
    return None


def _failure(signature: str, error: Exception) -> str:
    return (
        f"{signature} does not take an example of zeros and empty texts: "
        f"{type(error).__name__}: {_first_line(error)}"
    )


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:300]


def main(arguments: Sequence[str]) -> int:
    """Answer the request in the first file into the second."""
    return answer_request(arguments, AddRequest, answer)


if __name__ == "__main__":
    end_with_parent()
    sys.exit(main(sys.argv[1:]))

"""Reference runtime: TensorFlow's v1 loader and session callables, as in TensorFlow Serving."""

from __future__ import annotations

import gc
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from timonel.errors import ModelError
from timonel.models.runtime_choice import FROZEN_DIR, chosen_runtime
from timonel.models.safety.check import UnreadableModelError, check_saved_model
from timonel.models.safety.op_libraries import allowed_operations
from timonel.models.safety.operations import library_hint, package_of
from timonel.serving.runtimes import _private
from timonel.serving.runtimes.base import LoadedModel, Runtime
from timonel.serving.runtimes.saved_model import signature_of, signatures_in
from timonel.serving.settings.base import EVERY_MODEL
from timonel.serving.settings.batching import cores
from timonel.serving.settings.runtime import RuntimeSettings
from timonel.serving.signature import Array, Signature, TensorSpec
from timonel.serving.status import Code, StatusError, not_found

_Key = tuple[str, tuple[str, ...]]
_Fetch = tuple[tuple[str, ...], Callable[..., Sequence[Any]]]
"""Names of outputs, and the function that computes them from all inputs. Thread-safe."""
_FEW_CORES = 2
_MAX_CALLABLES = 32
"""Limit on output selections with a callable of their own; other selections compute all outputs."""
_NODE_REFERENCES = re.compile(
    r"\s*\[\[\{\{.*?\}\}\]\]|\n\t \[\[.*?\]\]|\s*\{\{(function_)?node [^}]*\}\}|\s*\[Op:\w+\]"
)
"""Node references in a message: ``[[{{function_node f}}{{node g}}]]``."""
_ROOT_ERRORS = re.compile(
    r"\d+ root error\(s\) found\.\s*\(0\) [A-Z_]+: (?P<first>.*?)\s*(?:\(1\) [A-Z_]+: |\Z)",
    re.DOTALL,
)
"""The same problem, reported by several operations at once."""
_MAX_CHARACTERS = 2_000
_PREFACE = re.compile(r"\A.*(Original error:|\nNode: '[^']*')\s*", re.DOTALL)
"""TensorFlow's guess and trace before the cause of an error."""
_MISSING_OPERATION = re.compile(r"Op type not registered '(?P<operation>[^']+)'")


class TensorFlowRuntime(Runtime):
    """Loads each SavedModel into its own session."""

    name = "tensorflow"

    def load(self, path: Path, settings: RuntimeSettings) -> LoadedModel:
        """Load the SavedModel in ``path``."""
        if not any((path / name).is_file() for name in ("saved_model.pb", "saved_model.pbtxt")):
            raise not_found(
                "Specified file path does not appear to contain a SavedModel bundle (should have "
                f"a file called `saved_model.pb`)\nSpecified file path: {path}"
            )
        _private.import_tensorflow()
        source, shown = path, None
        if settings.frozen_graphs and chosen_runtime(path) == "frozen":
            source, shown = path / FROZEN_DIR, signatures_in(path, settings.tags)
        try:
            allowed = allowed_operations(
                settings.allow_ops.get(EVERY_MODEL, ()), settings.op_libraries
            )
        except ModelError as error:
            raise StatusError(Code.FAILED_PRECONDITION, error.message) from error
        checked = None
        if settings.safe_loading:
            try:
                checked = check_saved_model(source, allowed)
            except UnreadableModelError as error:
                raise StatusError(Code.INVALID_ARGUMENT, error.message) from error
            except ModelError as error:
                raise StatusError(Code.PERMISSION_DENIED, str(error)) from error
        return _SessionModel(source, settings, shown, checked)


class _SessionModel(LoadedModel):
    """A SavedModel in a session.

    Args:
        shown: The signatures for clients, if other than the model's own: the same ones with other
            tensor names.
        checked: The ``SavedModel`` that was checked, to load instead of the one in the folder.
    """

    def __init__(
        self,
        path: Path,
        settings: RuntimeSettings,
        shown: Mapping[str, Signature] | None = None,
        checked: Any = None,
    ) -> None:
        import tensorflow as tf  # noqa: PLC0415 - only a server process imports it

        v1 = tf.compat.v1
        # Without a change of threads, a 784-128-10 model takes a fifth of the CPU. On more cores,
        # operations of one request run in parallel.
        self._in_callers = not settings.inter_op_threads and cores() <= _FEW_CORES
        config = v1.ConfigProto(
            intra_op_parallelism_threads=settings.intra_op_threads,
            inter_op_parallelism_threads=settings.inter_op_threads,
            # By default sessions share the threads that run operations, one per core: as many
            # endless requests would stop all models. Threads within operations are always shared.
            use_per_session_threads=not self._in_callers,
            # Graphs of TensorFlow 1 may name a device that this machine lacks.
            allow_soft_placement=True,
        )
        self._errors: type[Exception] = tf.errors.OpError
        self._session: Any = v1.Session(graph=tf.Graph(), config=config)
        # An endless initializer holds the loading thread only.
        _private.run_in_callers(self._session)
        self._callables: dict[_Key, _Fetch] = {}
        self._lock = threading.Lock()
        try:
            meta_graph = _load(self._session, path, checked, settings.tags, self._errors)
            self._own = {
                name: _as_graph(signature_of(name, proto, tf.make_ndarray), self._session.graph)
                for name, proto in meta_graph.signature_def.items()
            }
            self.signatures = self._own if shown is None else shown
        except BaseException:
            self.close()
            raise

    @property
    def platform(self) -> str:
        return "tensorflow_savedmodel"

    def run(
        self, signature: str, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None
    ) -> dict[str, Array]:
        spec = self._own[signature]
        requested = spec.outputs if outputs is None else outputs
        names = tuple(sorted(requested))
        try:
            # A signature may name tensors that the graph lacks.
            fetched, call = self._callables.get((signature, names)) or self._make(spec, names)
            values = call(*[inputs[name] for name in spec.inputs])
        except self._errors as error:
            raise _status(error) from error
        except UnicodeDecodeError as error:
            # TensorFlow's message quotes bytes of the request, and its bindings read it as UTF-8.
            text = bytes(error.object).decode(errors="backslashreplace")
            raise StatusError(Code.INVALID_ARGUMENT, without_graph(text)) from error
        except (TypeError, ValueError) as error:
            # Errors of numpy or of the conversion to a C++ tensor are caused by the caller's array.
            raise StatusError(Code.INVALID_ARGUMENT, str(error)) from error
        found = dict(zip(fetched, values, strict=True))
        return {name: _as_array(found[name]) for name in requested}

    def close(self) -> None:
        self._callables.clear()
        self._session.close()
        self._session = None
        # Graphs have reference cycles; without this their memory stays until some later collection.
        gc.collect()

    def _make(self, spec: Signature, names: tuple[str, ...]) -> _Fetch:
        with self._lock:
            if len(self._callables) >= _MAX_CALLABLES + len(self._own):
                # Clients choose outputs, and each selection would keep its own graph.
                names = tuple(sorted(spec.outputs))
            key = (spec.name, names)
            if key not in self._callables:
                feed = [tensor.tensor for tensor in spec.inputs.values()]
                fetch = [spec.outputs[name].tensor for name in names]
                call = _private.make_callable(
                    self._session, feed, fetch, in_callers=self._in_callers
                )
                self._callables[key] = names, call
            return self._callables[key]


def _load(session: Any, path: Path, checked: Any, tags: Sequence[str], errors: Any) -> Any:
    try:
        with session.graph.as_default():
            return _private.load_saved_model(session, path, checked, tags)
    except errors as error:
        status = _status(error, _PREFACE.sub("", getattr(error, "message", None) or ""))
        raise _load_error(status.code, status.message) from error
    except (OSError, RuntimeError, ValueError, TypeError, KeyError) as error:
        # A damaged file surfaces as any of these, depending on where the damage is.
        raise _load_error(Code.INVALID_ARGUMENT, f"{type(error).__name__}: {error}") from error


def _load_error(code: Code, message: str) -> StatusError:
    """Return an error that names the op library of a missing operation."""
    match = _MISSING_OPERATION.search(message)
    if match is None:
        return StatusError(code, message)
    hint = library_hint([package_of(match["operation"]) or "PACKAGE"])
    return StatusError(
        Code.FAILED_PRECONDITION,
        f"TensorFlow lacks the operation {match['operation']}, which the model uses: {hint}",
    )


def _as_graph(signature: Signature, graph: Any) -> Signature:
    """Return a signature whose inputs have the shapes that the graph takes.

    Early releases of TensorFlow declared unknown shapes as those of scalars.
    """

    def accepted(spec: TensorSpec) -> tuple[int, ...] | None:
        try:
            shape = graph.get_tensor_by_name(spec.tensor).shape
        except (KeyError, ValueError):
            return spec.shape  # another encoding, or a tensor that requests will miss
        if shape.rank is None:
            return spec.shape or None
        return tuple(-1 if size is None else size for size in shape)

    inputs = {name: replace(spec, shape=accepted(spec)) for name, spec in signature.inputs.items()}
    return replace(signature, inputs=inputs)


def _as_array(value: Any) -> Array:
    # A scalar string comes as plain bytes, which numpy would cut at trailing zeros.
    return np.array(value, dtype=object) if isinstance(value, bytes) else np.asarray(value)


def _status(error: Any, message: str | None = None) -> StatusError:
    code = error.error_code if error.error_code in set(Code) else Code.UNKNOWN
    return StatusError(
        Code(code), without_graph(message or error.message or "") or type(error).__name__
    )


def without_graph(message: str) -> str:
    """Strip references to graph nodes and functions from TensorFlow's message.

    Clients do not know the graph, nor the Python code that an operation calls.
    """
    # The message may quote a client's text of any length.
    message = message[:_MAX_CHARACTERS].partition("\nTraceback (most recent call last):")[0]
    match = _ROOT_ERRORS.match(message)
    first = match["first"] if match else message
    return _NODE_REFERENCES.sub("", first).strip()

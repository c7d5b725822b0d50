"""Reference runtime: TensorFlow's v1 loader and session callables, as in TensorFlow Serving."""

from __future__ import annotations

import gc
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from timonel.models.runtime_choice import FROZEN_DIR, chosen_runtime
from timonel.serving.runtimes import _private
from timonel.serving.runtimes.base import LoadedModel, Runtime
from timonel.serving.runtimes.safety.check import check_folder
from timonel.serving.runtimes.saved_model import signature_of, signatures_in
from timonel.serving.settings import EVERY_MODEL, RuntimeSettings
from timonel.serving.signature import Array, Signature
from timonel.serving.status import Code, StatusError, not_found

_Key = tuple[str, tuple[str, ...]]
_Fetch = tuple[tuple[str, ...], Callable[..., Sequence[Any]]]
"""Names of outputs, and the function that computes them from all inputs. Thread-safe."""
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


class TensorFlowRuntime(Runtime):
    """Loads each SavedModel into its own session."""

    name = "tensorflow"

    def prepare(self) -> None:
        """Import TensorFlow."""
        _private.import_tensorflow()

    def load(self, path: Path, settings: RuntimeSettings) -> LoadedModel:
        """Load the SavedModel in ``path``."""
        if not any((path / name).is_file() for name in ("saved_model.pb", "saved_model.pbtxt")):
            raise not_found(
                "Specified file path does not appear to contain a SavedModel bundle (should have "
                f"a file called `saved_model.pb`)\nSpecified file path: {path}"
            )
        source, shown = path, None
        if settings.frozen_graphs and chosen_runtime(path) == "frozen":
            source, shown = path / FROZEN_DIR, signatures_in(path, settings.tags)
        if settings.safe_loading:
            check_folder(source, settings.tags, settings.allow_ops.get(EVERY_MODEL, ()))
        return _SessionModel(source, settings, shown)


class _SessionModel(LoadedModel):
    """A SavedModel in a session.

    Args:
        path: Its folder.
        settings: The compute settings.
        shown: The signatures for clients, if other than the model's own: the same ones with other
            tensor names.
    """

    def __init__(
        self,
        path: Path,
        settings: RuntimeSettings,
        shown: Mapping[str, Signature] | None = None,
    ) -> None:
        import tensorflow as tf  # noqa: PLC0415 - only a server process imports it

        v1 = tf.compat.v1
        config = v1.ConfigProto(
            intra_op_parallelism_threads=settings.intra_op_threads,
            inter_op_parallelism_threads=settings.inter_op_threads,
            # By default sessions share the process's threads between operations, and with them
            # the thread counts of the first session. Threads within operations are always shared.
            use_per_session_threads=bool(settings.inter_op_threads),
        )
        self._errors: type[Exception] = tf.errors.OpError
        self._session: Any = v1.Session(graph=tf.Graph(), config=config)
        self._callables: dict[_Key, _Fetch] = {}
        self._lock = threading.Lock()
        try:
            meta_graph = _load(self._session, path, settings.tags, self._errors)
            self._own = {
                name: signature_of(name, proto, tf.make_ndarray)
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
        fetched, call = self._callables.get((signature, names)) or self._make(spec, names)
        try:
            values = call(*[inputs[name] for name in spec.inputs])
        except self._errors as error:
            raise _status(error) from error
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
                call = _private.make_callable(self._session, feed, fetch)
                self._callables[key] = names, call
            return self._callables[key]


def _load(session: Any, path: Path, tags: Sequence[str], errors: type[Exception]) -> Any:
    import tensorflow as tf  # noqa: PLC0415 - only a server process imports it

    try:
        with session.graph.as_default():
            return tf.compat.v1.saved_model.loader.load(session, list(tags), str(path))
    except errors as error:
        raise _status(error) from error
    except (OSError, RuntimeError, ValueError, TypeError, KeyError) as error:
        # A damaged file surfaces as any of these, depending on where the damage is.
        raise StatusError(Code.INVALID_ARGUMENT, f"{type(error).__name__}: {error}") from error


def _as_array(value: Any) -> Array:
    # A scalar string comes as plain bytes, which numpy would cut at trailing zeros.
    return np.array(value, dtype=object) if isinstance(value, bytes) else np.asarray(value)


def _status(error: Any) -> StatusError:
    code = error.error_code if error.error_code in set(Code) else Code.UNKNOWN
    return StatusError(Code(code), without_graph(error.message or "") or type(error).__name__)


def without_graph(message: str) -> str:
    """Strip references to graph nodes and functions from TensorFlow's message.

    Clients do not know the graph.
    """
    # The message may quote a client's text of any length.
    message = message[:_MAX_CHARACTERS]
    match = _ROOT_ERRORS.match(message)
    first = match["first"] if match else message
    return _NODE_REFERENCES.sub("", first).strip()

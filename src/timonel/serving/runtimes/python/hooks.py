"""Hooks around a model: ``preprocess`` before it and ``postprocess`` after it.

Both run once per request, outside of any batch, in threads of the version's process, so a slow hook
delays only its own request. The model in between is batched as usual.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from timonel.serving.futures import await_settled
from timonel.serving.runtimes.base import Pending, ScheduledModel, WrappedModel
from timonel.serving.runtimes.python.code import PythonFile
from timonel.serving.runtimes.python.declaration import (
    check_inputs,
    declared_specs,
    fitted,
    refusal,
)
from timonel.serving.signature import DEFAULT_SIGNATURE, Array, Signature
from timonel.serving.status import Code, StatusError

_MAX_PENDING = 1000
"""Limit on requests in progress per version, equal to the limit on requests waiting for a batch."""

Arrays = dict[str, Array]


class Hooks:
    """The hooks in a file. Thread-safe.

    The module defines ``preprocess(inputs)``, ``postprocess(outputs)`` or both, each from a dict of
    arrays to another. ``inputs`` and ``outputs`` declare the tensors for clients if they differ
    from the model's own; ``signature`` names the signature if it is not the default one, and
    ``threads`` is the number of concurrent calls.

    Args:
        file: The file.
        signatures: The signatures of the model.

    Raises:
        StatusError: The file has no hooks, or they do not fit the model.
    """

    def __init__(self, file: Path, signatures: Mapping[str, Signature]) -> None:
        self._source = source = PythonFile(file)
        self._before: Callable[[Arrays], Any] | None = _function(source, "preprocess")
        self._after: Callable[[Arrays], Any] | None = _function(source, "postprocess")
        if self._before is None and self._after is None:
            raise refusal(f"{source.name} defines neither preprocess nor postprocess")
        name = str(getattr(source.module, "signature", DEFAULT_SIGNATURE))
        if name not in signatures:
            known = ", ".join(sorted(signatures))
            raise refusal(
                f"{source.name} is for signature {name}, which the model lacks; it has {known}"
            )
        self.model_side = signatures[name]
        self.client_side = self._declared()
        self._checks = hasattr(source.module, "inputs")
        threads = getattr(source.module, "threads", None)
        if threads is not None and (not isinstance(threads, int) or threads < 1):
            raise refusal(f"threads in {source.name} must be 1 or more, got {threads!r}")
        self.threads: int | None = threads

    @property
    def has_before(self) -> bool:
        """Whether the file has a ``preprocess`` hook."""
        return self._before is not None

    @property
    def has_after(self) -> bool:
        """Whether the file has a ``postprocess`` hook."""
        return self._after is not None

    def before(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """Return the model's inputs.

        Raises:
            StatusError: The client's inputs do not fit, or the hook failed.
        """
        if self._before is None:
            return inputs
        if self._checks:
            check_inputs(inputs, self.client_side.inputs)
        # Hooks may change arrays in place, while others still read them.
        copies = {name: inputs[name].copy() for name in self.client_side.inputs}
        given = self._source.call(self._before, copies, "preprocess")
        # The model reports wrong shapes itself, and may accept more than it declares.
        specs = {name: replace(spec, shape=None) for name, spec in self.model_side.inputs.items()}
        return fitted(given, specs, giver="preprocess")

    def after(self, outputs: Mapping[str, Array]) -> Arrays:
        """Return the client's outputs.

        Raises:
            StatusError: The hook failed, or its outputs do not match the declaration.
        """
        if self._after is None:
            return dict(outputs)
        copies = {name: array.copy() for name, array in outputs.items()}
        given = self._source.call(self._after, copies, "postprocess")
        return fitted(given, self.client_side.outputs, giver="postprocess")

    def _declared(self) -> Signature:
        module, signature, name = self._source.module, self.model_side, self._source.name
        if hasattr(module, "inputs"):
            if self._before is None:
                raise refusal(f"{name} declares inputs, but defines no preprocess")
            specs = declared_specs(module.inputs, where=f"inputs of {name}")
            signature = replace(signature, inputs=specs, defaults={})
        if hasattr(module, "outputs"):
            if self._after is None:
                raise refusal(f"{name} declares outputs, but defines no postprocess")
            specs = declared_specs(module.outputs, where=f"outputs of {name}")
            signature = replace(signature, outputs=specs)
        return signature


class HookedModel(WrappedModel):
    """A version with hooks around it. Thread-safe.

    Args:
        model: The loaded version; owned from now on.
        hooks: The hooks.
        threads: Number of concurrent hooks, unless the file sets ``threads``.
    """

    _model: ScheduledModel

    def __init__(self, model: ScheduledModel, hooks: Hooks, threads: int) -> None:
        self._model = model
        self._hooks = hooks
        self._pool = ThreadPoolExecutor(hooks.threads or threads, thread_name_prefix="hooks")
        self._gate = threading.Lock()
        self._pending: set[_HookedRequest] = set()
        self.signatures = {**model.signatures, hooks.client_side.name: hooks.client_side}

    def submit(
        self,
        signature: str,
        inputs: Mapping[str, Array],
        outputs: Sequence[str] | None = None,
        deadline: float | None = None,
    ) -> Future[Arrays]:
        """Submit a request to hooks and model without waiting for it."""
        if signature != self._hooks.client_side.name:
            return self._model.submit(signature, inputs, outputs, deadline)
        request = _HookedRequest(inputs, outputs, deadline)
        with self._gate:
            if len(self._pending) >= _MAX_PENDING:
                error = StatusError(Code.UNAVAILABLE, "Too many requests are waiting for the hooks")
                request.answer.set_exception(error)
                return request.answer
            self._pending.add(request)
        request.answer.add_done_callback(partial(self._discard, request))
        if self._hooks.has_before:
            self._pool.submit(request.guarded, self._prepare, request)
        else:
            request.guarded(self._prepare, request)
        return request.answer

    def close(self) -> None:
        """Answer requests in progress, then free the memory."""
        with self._gate:
            answers = [request.answer for request in self._pending]
        await_settled(answers)
        # A cancelled request may still be in a hook; it goes no further.
        self._pool.shutdown()
        self._model.close()

    def _discard(self, request: _HookedRequest, _: Future[Arrays]) -> None:
        with self._gate:
            self._pending.discard(request)

    def _prepare(self, request: _HookedRequest) -> None:
        request.check_time()
        arrays = self._hooks.before(request.inputs)
        request.check_time()
        if request.answer.done():
            return
        names = None if self._hooks.has_after else request.outputs
        name = self._hooks.model_side.name
        computed = self._model.submit(name, arrays, names, request.deadline)
        request.answer.add_done_callback(partial(_cancel_computing, computed))
        computed.add_done_callback(partial(self._on_computed, request))

    def _on_computed(self, request: _HookedRequest, computed: Future[Arrays]) -> None:
        # Runs in a thread that computes batches, so hooks must not run here.
        if isinstance(computed, Pending):
            request.answer.compute_s = computed.compute_s
        if request.answer.done():
            return
        if self._hooks.has_after and not computed.cancelled() and computed.exception() is None:
            self._pool.submit(request.guarded, self._finish, request, computed)
        else:
            request.guarded(self._finish, request, computed)

    def _finish(self, request: _HookedRequest, computed: Future[Arrays]) -> None:
        found = computed.result()
        if self._hooks.has_after:
            request.check_time()
            found = self._hooks.after(found)
        names = request.outputs
        request.complete(found if names is None else {name: found[name] for name in names})


class _HookedRequest:
    """A request in progress through hooks and model."""

    def __init__(
        self, inputs: Mapping[str, Array], outputs: Sequence[str] | None, deadline: float | None
    ) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self.deadline = deadline
        self.answer = Pending()

    def guarded(self, step: Callable[..., None], *arguments: Any) -> None:
        """Run a step unless the request is done; errors become its answer."""
        if self.answer.done():
            return
        try:
            step(*arguments)
        except BaseException as error:  # noqa: BLE001 - becomes the answer
            if self.answer.set_running_or_notify_cancel():
                self.answer.set_exception(error)

    def check_time(self) -> None:
        """Raise an error if the request's deadline has passed."""
        if self.deadline is not None and time.monotonic() >= self.deadline:
            raise StatusError(Code.DEADLINE_EXCEEDED, "Deadline exceeded in the hooks")

    def complete(self, outputs: Arrays) -> None:
        """Set the answer unless the request was cancelled."""
        if self.answer.set_running_or_notify_cancel():
            self.answer.set_result(outputs)


def _cancel_computing(computed: Future[Arrays], answer: Future[Arrays]) -> None:
    """Cancel the model's request if the client's request was cancelled."""
    if answer.cancelled():
        computed.cancel()


def _function(source: PythonFile, name: str) -> Callable[[Arrays], Any] | None:
    found = getattr(source.module, name, None)
    if found is not None and not callable(found):
        raise refusal(f"{name} in {source.name} must be a function, got {found!r}")
    return found

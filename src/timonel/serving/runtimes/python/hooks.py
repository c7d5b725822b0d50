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
from timonel.serving.runtimes.python.code import Source
from timonel.serving.runtimes.python.declaration import check_inputs, declared_specs, fitted
from timonel.serving.signature import DEFAULT_SIGNATURE, Array, Signature
from timonel.serving.status import Code, StatusError

_WAITING_LIMIT = 1000
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
        self._source = source = Source(file)
        self._before: Callable[[Arrays], Any] | None = _function(source, "preprocess")
        self._after: Callable[[Arrays], Any] | None = _function(source, "postprocess")
        if self._before is None and self._after is None:
            raise _refusal(f"expected preprocess or postprocess in {source.name}, found neither")
        name = str(getattr(source.module, "signature", DEFAULT_SIGNATURE))
        if name not in signatures:
            known = ", ".join(sorted(signatures))
            raise _refusal(f"expected {source.name} to be for one of {known}, got {name}")
        self.model_side = signatures[name]
        self.client_side = self._declared()
        self._checks = hasattr(source.module, "inputs")
        threads = getattr(source.module, "threads", None)
        if threads is not None and (not isinstance(threads, int) or threads < 1):
            raise _refusal(f"expected threads in {source.name} to be 1 or more, got {threads!r}")
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
                raise _refusal(f"expected preprocess in {name}, which declares inputs, found none")
            specs = declared_specs(module.inputs, where=f"inputs of {name}")
            signature = replace(signature, inputs=specs, defaults={})
        if hasattr(module, "outputs"):
            if self._after is None:
                raise _refusal(
                    f"expected postprocess in {name}, which declares outputs, found none"
                )
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
        self._under_way: set[_Passage] = set()
        self.signatures = {**model.signatures, hooks.client_side.name: hooks.client_side}

    def run(
        self,
        signature: str,
        inputs: Mapping[str, Array],
        outputs: Sequence[str] | None = None,
        deadline: float | None = None,
    ) -> Arrays:
        """Compute the outputs of a signature; see `submit`."""
        return self.submit(signature, inputs, outputs, deadline).result()

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
        passage = _Passage(inputs, outputs, deadline)
        with self._gate:
            if len(self._under_way) >= _WAITING_LIMIT:
                error = StatusError(Code.UNAVAILABLE, "Too many requests wait for the hooks")
                passage.answer.set_exception(error)
                return passage.answer
            self._under_way.add(passage)
        passage.answer.add_done_callback(partial(self._forget, passage))
        if self._hooks.has_before:
            self._pool.submit(passage.guarded, self._prepare, passage)
        else:
            passage.guarded(self._prepare, passage)
        return passage.answer

    def close(self) -> None:
        """Answer requests in progress, then free the memory."""
        with self._gate:
            answers = [passage.answer for passage in self._under_way]
        await_settled(answers)
        # A cancelled request may still be in a hook; it goes no further.
        self._pool.shutdown()
        self._model.close()

    def _forget(self, passage: _Passage, _: Future[Arrays]) -> None:
        with self._gate:
            self._under_way.discard(passage)

    def _prepare(self, passage: _Passage) -> None:
        passage.check_time()
        arrays = self._hooks.before(passage.inputs)
        passage.check_time()
        if passage.answer.done():
            return
        names = None if self._hooks.has_after else passage.outputs
        name = self._hooks.model_side.name
        computed = self._model.submit(name, arrays, names, passage.deadline)
        passage.answer.add_done_callback(partial(_give_up, computed))
        computed.add_done_callback(partial(self._on_computed, passage))

    def _on_computed(self, passage: _Passage, computed: Future[Arrays]) -> None:
        # Runs in a thread that computes batches, so hooks must not run here.
        if isinstance(computed, Pending):
            passage.answer.compute_s = computed.compute_s
        if passage.answer.done():
            return
        if self._hooks.has_after and not computed.cancelled() and computed.exception() is None:
            self._pool.submit(passage.guarded, self._finish, passage, computed)
        else:
            passage.guarded(self._finish, passage, computed)

    def _finish(self, passage: _Passage, computed: Future[Arrays]) -> None:
        found = computed.result()
        if self._hooks.has_after:
            passage.check_time()
            found = self._hooks.after(found)
        names = passage.outputs
        passage.give(found if names is None else {name: found[name] for name in names})


class _Passage:
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

    def give(self, outputs: Arrays) -> None:
        """Set the answer unless the request was cancelled."""
        if self.answer.set_running_or_notify_cancel():
            self.answer.set_result(outputs)


def _give_up(computed: Future[Arrays], answer: Future[Arrays]) -> None:
    """Cancel the model's request if the client's request was cancelled."""
    if answer.cancelled():
        computed.cancel()


def _function(source: Source, name: str) -> Callable[[Arrays], Any] | None:
    found = getattr(source.module, name, None)
    if found is not None and not callable(found):
        raise _refusal(f"expected {name} in {source.name} to be a function, got {found!r}")
    return found


def _refusal(message: str) -> StatusError:
    return StatusError(Code.FAILED_PRECONDITION, message)

"""Python around a model: ``preprocess`` before it is computed, ``postprocess`` after it.

Both run once a request, outside of any batch, in threads of the version's process: what a slow
one holds up is that request. What the model computes in between is batched as ever.
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

from timonel.serving.drain import await_settled
from timonel.serving.runtimes.base import Pending, ScheduledModel, WrappedModel
from timonel.serving.runtimes.python.code import Source
from timonel.serving.runtimes.python.declaration import check_inputs, declared_specs, fitted
from timonel.serving.signature import DEFAULT_SIGNATURE, Array, Signature
from timonel.serving.status import Code, StatusError

_WAITING_LIMIT = 1000
"""Requests of a version that may be under way, as many as may wait for its batches."""

Arrays = dict[str, Array]


class Hooks:
    """The hooks in a file. Thread-safe.

    The module has one of ``preprocess(inputs)`` and ``postprocess(outputs)`` at least, each from a
    dict of arrays to another. ``inputs`` and ``outputs`` declare what clients send and get where
    that is not what the model takes and gives; ``signature`` names the signature if it is not the
    default one, and ``threads`` says how many calls may be under way at once.

    Args:
        file: The file.
        signatures: The model's own.

    Raises:
        StatusError: There are no hooks in it, or they do not fit the model.
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
        """Whether anything is done before the model."""
        return self._before is not None

    @property
    def has_after(self) -> bool:
        """Whether anything is done after the model."""
        return self._after is not None

    def before(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """Return the model's inputs.

        Raises:
            StatusError: The client's do not fit, or the hook has raised.
        """
        if self._before is None:
            return inputs
        if self._checks:
            check_inputs(inputs, self.client_side.inputs)
        # Hooks may work in place, on what others still read.
        copies = {name: inputs[name].copy() for name in self.client_side.inputs}
        given = self._source.call(self._before, copies, "preprocess")
        # The model words itself what is wrong with a shape, and may take more than it declares.
        specs = {name: replace(spec, shape=None) for name, spec in self.model_side.inputs.items()}
        return fitted(given, specs, giver="preprocess")

    def after(self, outputs: Mapping[str, Array]) -> Arrays:
        """Return what the client gets.

        Raises:
            StatusError: The hook has raised, or its outputs are not those declared.
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
        model: What computes; owned from now on.
        hooks: What is done before and after.
        threads: How many hooks run at once, where they do not say so themselves.
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
        """Pass a request through the hooks and the model, without waiting for it."""
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
        """Answer what is under way, then free the memory."""
        with self._gate:
            answers = [passage.answer for passage in self._under_way]
        await_settled(answers)
        # What was given up may still be in a hook; it goes no further.
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
        # In a thread that computes batches: no place for a hook.
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
    """A request on its way through hooks and model."""

    def __init__(
        self, inputs: Mapping[str, Array], outputs: Sequence[str] | None, deadline: float | None
    ) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self.deadline = deadline
        self.answer = Pending()

    def guarded(self, step: Callable[..., None], *arguments: Any) -> None:
        """Take a step, unless nobody waits any more; what it raises is the answer."""
        if self.answer.done():
            return
        try:
            step(*arguments)
        except BaseException as error:  # noqa: BLE001 - is the answer of whoever waits for one
            if self.answer.set_running_or_notify_cancel():
                self.answer.set_exception(error)

    def check_time(self) -> None:
        """Raise what is answered to a request whose time is over."""
        if self.deadline is not None and time.monotonic() >= self.deadline:
            raise StatusError(Code.DEADLINE_EXCEEDED, "Deadline exceeded in the hooks")

    def give(self, outputs: Arrays) -> None:
        """Answer, unless the request was given up."""
        if self.answer.set_running_or_notify_cancel():
            self.answer.set_result(outputs)


def _give_up(computed: Future[Arrays], answer: Future[Arrays]) -> None:
    """Have the model told that nobody waits any more."""
    if answer.cancelled():
        computed.cancel()


def _function(source: Source, name: str) -> Callable[[Arrays], Any] | None:
    found = getattr(source.module, name, None)
    if found is not None and not callable(found):
        raise _refusal(f"expected {name} in {source.name} to be a function, got {found!r}")
    return found


def _refusal(message: str) -> StatusError:
    return StatusError(Code.FAILED_PRECONDITION, message)

"""Enter the Kerases' ``fit`` loops in the middle of an epoch.

In Keras 3, `EpochIterator._enumerate_iterator` numbers the steps of an epoch; its replacement can
start later, once. tf-keras has `DataHandler._initial_step` for its own fault tolerance. Tests pin
both sources.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from timonel.training.worker.private.attributes import replaced, wrap


@dataclass
class Entrance:
    """Entry point of the next epoch."""

    pending: tuple[int, int] | None = None
    stands_in: bool = False  # its steps are already complete


_entrance = Entrance()
"""Of the one ``fit`` that a process runs at a time."""


def begin_at(step: int, seen: int, is_done: bool) -> None:
    """Start the next enumerated epoch at ``step``, after ``seen`` steps of the pass over the data.

    Keras needs the result of at least one step. So for a call that was interrupted after all steps
    of an epoch, before its validation, the last step runs again without training or callbacks.
    """
    _entrance.stands_in = is_done
    _entrance.pending = (step - 1, max(0, seen - 1)) if is_done else (step, seen)


@contextlib.contextmanager
def stepping(
    model: Any, before: Callable[[], None], after: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Call ``before``, whose errors end ``fit``, and ``after`` with each training step."""
    make = model.make_train_function

    def hooked_make(*args: Any, **kwargs: Any) -> Any:
        _unhook(model)
        made = make(*args, **kwargs)
        step = model.train_function if made is None else made

        def hooked(iterator: Any) -> Any:
            if _entrance.stands_in:
                return model.get_metrics_result()
            before()
            found = step(iterator)
            after()
            return found

        hooked.is_hook_for = step  # type: ignore[attr-defined] # removed by _unhook
        model.train_function = hooked
        return hooked

    try:
        with replaced(model, make_train_function=hooked_make):
            yield
    finally:
        _unhook(model)


@contextlib.contextmanager
def entering(keras: Any) -> Iterator[None]:
    """Enter ``fit`` at the position of `begin_at`, within the block."""
    wrap(keras.callbacks.CallbackList, "on_train_batch_begin", _quiet)
    wrap(keras.callbacks.CallbackList, "on_train_batch_end", _quiet_end)
    if keras.__name__ == "keras":
        from keras.src.trainers.epoch_iterator import EpochIterator  # noqa: PLC0415 - Keras loads

        wrap(EpochIterator, "_enumerate_iterator", _enumerating)
    else:
        from tf_keras.src.engine.data_adapter import DataHandler  # noqa: PLC0415 - Keras loads here

        wrap(DataHandler, "steps", _stepping_from)
    try:
        yield
    finally:
        _entrance.pending, _entrance.stands_in = None, False


def beside() -> contextlib.AbstractContextManager[None]:
    """Let another ``fit`` run within the block from its own beginning."""
    return replaced(_entrance, pending=None, stands_in=False)


def _unhook(model: Any) -> None:
    model.train_function = getattr(model.train_function, "is_hook_for", model.train_function)


def _quiet(original: Callable[..., Any], self: Any, batch: int, logs: Any = None) -> None:
    """Wrap a callback to skip a repeated step."""
    if not _entrance.stands_in:
        original(self, batch, logs)


def _quiet_end(original: Callable[..., Any], self: Any, batch: int, logs: Any = None) -> None:
    _quiet(original, self, batch, logs)
    _entrance.stands_in = False


def _stepping_from(original: Callable[..., Any], self: Any) -> Any:
    """Wrap ``DataHandler.steps`` of tf-keras."""
    pending, _entrance.pending = _entrance.pending, None
    if pending is not None:
        self._initial_step = pending[0]
    return original(self)


def _enumerating(original: Callable[..., Any], self: Any) -> Any:
    """Wrap ``EpochIterator._enumerate_iterator`` of Keras 3."""
    pending, _entrance.pending = _entrance.pending, None
    return original(self) if pending is None else _enumerate_from(self, *pending)


def _enumerate_from(iterator: Any, first: int, seen: int) -> Iterator[tuple[int, int, Any]]:
    """Run `EpochIterator._enumerate_iterator` from the step ``first`` on."""
    iterator.data_adapter.on_epoch_begin()
    size = iterator.steps_per_execution
    steps = iterator.steps_per_epoch or iterator._num_batches
    iterator._current_iterator = iter(iterator._get_iterator())
    iterator._steps_seen = seen
    step = first
    while steps is None or step < steps:
        batches = iterator._num_batches
        if steps is not None and batches and iterator._steps_seen >= batches:
            if iterator.steps_per_epoch:
                iterator._interrupted_warning()
            break
        iterator._steps_seen += size
        yield step, step + size - 1, iterator._current_iterator
        step += size
    batches = iterator._num_batches
    if steps is not None and batches and iterator._steps_seen >= batches:
        iterator._current_iterator = iter(iterator._get_iterator())
        iterator._steps_seen = 0
    iterator.data_adapter.on_epoch_end()

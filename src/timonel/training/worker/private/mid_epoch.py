"""Enter the Kerases' ``fit`` loops in the middle of an epoch; follow their calls of sequences.

In Keras 3, `EpochIterator._enumerate_iterator` numbers the steps of an epoch; its replacement can
start later, once. tf-keras has `DataHandler._initial_step` for its own fault tolerance. Adapters
call ``on_epoch_begin`` and ``on_epoch_end`` of sequences. Tests pin both sources.
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
    validation: Any = None  # a sequence
    looking: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext


_CALLS = "_timonel_calls"
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
        from keras.src.trainers import data_adapters, epoch_iterator  # noqa: PLC0415 - Keras loads

        wrap(epoch_iterator.EpochIterator, "_enumerate_iterator", _enumerating)
        wrap(data_adapters.TFDatasetAdapter, "__init__", _adapting)
        wrap(data_adapters.PyDatasetAdapter, "get_tf_dataset", _looking)
    else:
        from tf_keras.src.engine import data_adapter  # noqa: PLC0415 - Keras loads here

        wrap(data_adapter.DataHandler, "steps", _stepping_from)
        wrap(data_adapter.DatasetAdapter, "__init__", _adapting)
        wrap(data_adapter.KerasSequenceAdapter, "__init__", _looking)
    try:
        yield
    finally:
        vars(_entrance).update(vars(Entrance()))


def call_with_epochs(dataset: Any, **calls: Callable[[], object]) -> None:
    """Make Keras call these where it would call methods of a sequence that ``dataset`` replaces."""
    setattr(dataset, _CALLS, calls)


def watch_looks(
    sequence: Any, looking: Callable[[], contextlib.AbstractContextManager[None]]
) -> None:
    """Let Keras look at the types of a sequence's first batches within ``looking()``."""
    _entrance.validation, _entrance.looking = sequence, looking


def beside() -> contextlib.AbstractContextManager[None]:
    """Let another ``fit`` run within the block from its own beginning."""
    return replaced(_entrance, **vars(Entrance()))


def _unhook(model: Any) -> None:
    model.train_function = getattr(model.train_function, "is_hook_for", model.train_function)


def _quiet(original: Callable[..., Any], self: Any, batch: int, logs: Any = None) -> None:
    """Wrap a callback to skip a repeated step."""
    if not _entrance.stands_in:
        original(self, batch, logs)


def _quiet_end(original: Callable[..., Any], self: Any, batch: int, logs: Any = None) -> None:
    _quiet(original, self, batch, logs)
    _entrance.stands_in = False


def _adapting(
    original: Callable[..., Any], adapter: Any, dataset: Any, *args: Any, **kwargs: Any
) -> None:
    """Wrap the constructor of an adapter of a ``tf.data.Dataset``."""
    original(adapter, dataset, *args, **kwargs)
    vars(adapter).update(getattr(dataset, _CALLS, {}))


def _looking(original: Callable[..., Any], adapter: Any, *args: Any, **kwargs: Any) -> Any:
    """Wrap the function of a sequence's adapter that reads its first batches."""
    sequence = args[0] if args else adapter.py_dataset
    is_ours = sequence is _entrance.validation
    with _entrance.looking() if is_ours else contextlib.nullcontext():
        return original(adapter, *args, **kwargs)


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
    is_done = _entrance.stands_in
    if not (first or is_done):
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
    if not is_done:
        iterator.data_adapter.on_epoch_end()

"""How the Kerases' ``fit`` loops are entered in the middle of an epoch, by private names.

Keras 3 numbers the steps of an epoch in `EpochIterator._enumerate_iterator`; in its place comes one
that can begin later, once. tf-keras has a place of its own for that, which its fault tolerance
uses: `DataHandler._initial_step`. Tests pin both sources.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass
class Entrance:
    """Where the next epoch of Keras is entered, and whether its steps are all done already."""

    pending: tuple[int, int] | None = None
    stands_in: bool = False

    def at(self, step: int, seen: int, is_done: bool) -> None:
        """Let the next epoch that is enumerated begin with ``step``.

        A call that was left when all steps of an epoch were done, before its validation, cannot be
        entered behind the last step: Keras wants a result of one. So the last one is gone through
        without training, and without any callback being told.

        Args:
            step: Steps of the epoch that are done.
            seen: Steps of the present pass over the data that are done.
            is_done: These are all steps of the epoch.
        """
        self.stands_in = is_done
        self.pending = (step - 1, max(0, seen - 1)) if is_done else (step, seen)


_entrance = Entrance()


def begin_at(step: int, seen: int, is_done: bool) -> None:
    """See `Entrance.at`; there is one ``fit`` at a time in a process."""
    _entrance.at(step, seen, is_done)


@contextlib.contextmanager
def stepping(model: Any, before: Callable[[], None]) -> Iterator[None]:
    """Call ``before`` ahead of each training step of ``model`` in the block.

    Args:
        model: A Keras model of either kind.
        before: May raise, which ends ``fit``.
    """
    make = model.make_train_function

    def hooked_make(*args: Any, **kwargs: Any) -> Any:
        _unhook(model)
        made = make(*args, **kwargs)
        step = model.train_function if made is None else made

        def hooked(iterator: Any) -> Any:
            if _entrance.stands_in:
                return model.get_metrics_result()
            before()
            return step(iterator)

        hooked.is_hook_for = step  # type: ignore[attr-defined] # taken away again by _unhook
        model.train_function = hooked
        return hooked

    model.make_train_function = hooked_make
    try:
        yield
    finally:
        del model.make_train_function
        _unhook(model)


@contextlib.contextmanager
def entering(keras: Any) -> Iterator[None]:
    """Let ``fit`` of this Keras be entered where `begin_at` says, within the block."""
    _install_quiet_callbacks(keras)
    if keras.__name__ == "keras":
        _install_enumeration()
    else:
        _install_steps()
    try:
        yield
    finally:
        _entrance.pending, _entrance.stands_in = None, False


def _unhook(model: Any) -> None:
    model.train_function = getattr(model.train_function, "is_hook_for", model.train_function)


def _install_quiet_callbacks(keras: Any) -> None:
    """Tell no callback of a step that only stands in for one that was done before."""
    kind = keras.callbacks.CallbackList
    if getattr(kind.on_train_batch_end, "is_timonels", False):
        return
    begin, end = kind.on_train_batch_begin, kind.on_train_batch_end

    def on_train_batch_begin(self: Any, batch: int, logs: Any = None) -> None:
        if not _entrance.stands_in:
            begin(self, batch, logs)

    def on_train_batch_end(self: Any, batch: int, logs: Any = None) -> None:
        if not _entrance.stands_in:
            end(self, batch, logs)
        _entrance.stands_in = False

    on_train_batch_end.is_timonels = True  # type: ignore[attr-defined] # marks the replacement
    kind.on_train_batch_begin = on_train_batch_begin
    kind.on_train_batch_end = on_train_batch_end


def _install_steps() -> None:
    from tf_keras.src.engine.data_adapter import DataHandler  # noqa: PLC0415 - Keras loads here

    original = DataHandler.steps
    if getattr(original, "is_timonels", False):
        return

    def steps(self: Any) -> Iterator[int]:
        pending, _entrance.pending = _entrance.pending, None
        if pending is not None:
            self._initial_step = pending[0]
        return original(self)  # type: ignore[no-any-return] # tf-keras has no types

    steps.is_timonels = True  # type: ignore[attr-defined] # marks the replacement
    DataHandler.steps = steps


def _install_enumeration() -> None:
    from keras.src.trainers.epoch_iterator import EpochIterator  # noqa: PLC0415 - Keras loads here

    original = EpochIterator._enumerate_iterator
    if getattr(original, "is_timonels", False):
        return

    def enumerate_iterator(self: Any) -> Iterator[tuple[int, int, Any]]:
        pending, _entrance.pending = _entrance.pending, None
        if pending is None:
            return original(self)  # type: ignore[no-any-return] # Keras has no types
        return _enumerate_from(self, *pending)

    enumerate_iterator.is_timonels = True  # type: ignore[attr-defined] # marks the replacement
    EpochIterator._enumerate_iterator = enumerate_iterator


def _enumerate_from(iterator: Any, first: int, seen: int) -> Iterator[tuple[int, int, Any]]:
    """Do what `EpochIterator._enumerate_iterator` does, from the step ``first`` on."""
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

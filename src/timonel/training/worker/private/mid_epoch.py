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


@dataclass
class Entrance:
    """Entry point of the next epoch.

    ``stands_in``: its steps are already complete.
    """

    pending: tuple[int, int] | None = None
    stands_in: bool = False

    def at(self, step: int, seen: int, is_done: bool) -> None:
        """Start the next enumerated epoch at ``step``.

        Keras needs the result of at least one step. So for a call that was interrupted after all
        steps of an epoch, before its validation, the last step runs again without training or
        callbacks.

        Args:
            step: Completed steps of the epoch.
            seen: Completed steps of the current pass over the data.
            is_done: Whether these are all steps of the epoch.
        """
        self.stands_in = is_done
        self.pending = (step - 1, max(0, seen - 1)) if is_done else (step, seen)


_entrance = Entrance()


def begin_at(step: int, seen: int, is_done: bool) -> None:
    """Call `Entrance.at`; a process runs one ``fit`` at a time."""
    _entrance.at(step, seen, is_done)


@contextlib.contextmanager
def stepping(model: Any, before: Callable[[], None]) -> Iterator[None]:
    """Call ``before`` ahead of each training step of ``model``, within the block.

    Args:
        model: Model of either Keras.
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

        hooked.is_hook_for = step  # type: ignore[attr-defined] # removed by _unhook
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
    """Enter ``fit`` at the position of `begin_at`, within the block."""
    _install_quiet_callbacks(keras)
    if keras.__name__ == "keras":
        _install_enumeration()
    else:
        _install_steps()
    try:
        yield
    finally:
        _entrance.pending, _entrance.stands_in = None, False


@contextlib.contextmanager
def beside() -> Iterator[None]:
    """Let another ``fit`` run within the block from its own beginning."""
    before = _entrance.pending, _entrance.stands_in
    _entrance.pending, _entrance.stands_in = None, False
    try:
        yield
    finally:
        _entrance.pending, _entrance.stands_in = before


def _unhook(model: Any) -> None:
    model.train_function = getattr(model.train_function, "is_hook_for", model.train_function)


def _install_quiet_callbacks(keras: Any) -> None:
    """Suppress callbacks for a repeated step."""
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

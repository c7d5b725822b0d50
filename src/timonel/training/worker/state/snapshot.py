"""Capture and restore the state of a ``fit`` call.

Kernels of TensorFlow's old random operations (such as ``tf.random.uniform`` inside a
``tf.function`` or a ``Dataset.map``) have state that cannot be read: it is not restored.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from timonel.errors import TimonelError
from timonel.models.keras_model import is_without_call
from timonel.training.worker.inputs import building
from timonel.training.worker.private import gradient_sums, hidden_state
from timonel.training.worker.state import callback_state
from timonel.training.worker.state.checkpoint_format import FitState, Progress
from timonel.training.worker.state.data_position import NOT_SAVED, Feed
from timonel.training.worker.state.process_variables import ProcessVariables
from timonel.training.worker.state.python_state import Origins
from timonel.training.worker.state.variables import Array, StrategyReplicas


def capture_random_state() -> dict[str, Any]:
    """Return the state of Python's, NumPy's and TensorFlow's generators."""
    name, keys, position, has_gauss, cached = np.random.get_state()
    return {
        "python": random.getstate(),
        "numpy": (name, np.array(keys), int(position), int(has_gauss), float(cached)),
        **{
            name: None if generator is None else generator.getstate()
            for name, generator in hidden_state.seed_generators().items()
        },
    }


def restore_random_state(saved: Mapping[str, Any]) -> None:
    """Restore the state from `capture_random_state`."""
    random.setstate(saved["python"])
    np.random.set_state(saved["numpy"])
    for name, generator in hidden_state.seed_generators().items():
        if generator is not None and saved[name] is not None:
            generator.setstate(saved[name])


_NOT_RESTORED = "state that is not restored, so that the job differs"


@dataclass(frozen=True)
class Slots:
    """Saved values of an optimizer."""

    values: Sequence[Array] = ()
    sums: Sequence[Array] = ()  # of gradients [replicas, ...]


_NO_SLOTS = Slots()
_REFROZEN = "changed which variables are trained"


@dataclass(eq=False)
class Snapshot:
    """State of a ``fit`` call. All tasks of a job capture and restore it at the same steps."""

    model: Any
    callbacks: Sequence[Any]
    replicas: StrategyReplicas
    feed: Feed
    others: ProcessVariables
    warn: Callable[[str], object]
    _warned: set[tuple[str, str]] = field(default_factory=set)
    _held: list[Array] | None = None
    _awaited: Slots = _NO_SLOTS
    _trained: int = 0
    _origins: Sequence[Origins] = ()

    def __post_init__(self) -> None:
        self._compiled = hidden_state.compiled_parts(self.model)
        self._trained_variables = [building.trained_variables(self.model)]

    def note_trained_variables(self, number: int) -> None:
        """Note which variables the model trains, before its first step (1) and after it (2)."""
        # Steps of a GAN switch them, too; they do so again in another process.
        if len(self._trained_variables) == number:
            self._trained_variables.append(building.trained_variables(self.model))
            if number == 1 and self._trained and building.differ(*self._trained_variables):
                # The step, which this process has yet to trace, was traced before the change.
                raise _cannot_resume(_REFROZEN)

    def begin(self) -> None:
        """Note what callbacks and the model hold as the call begins."""
        self._origins = self._origins or [Origins(each) for each in (self.model, *self.callbacks)]

    def take(self, progress: Progress, trained: int) -> FitState:
        """Return the state after ``trained`` steps, copied to host memory."""
        model, optimizer = self.model, getattr(self.model, "optimizer", None)
        own, slots, sums = building.model_variables(model), [], []
        awaited = self._awaited
        if hidden_state.has_slots(optimizer):
            slots, sums = building.optimizer_variables(optimizer), gradient_sums.sums_of(optimizer)
            awaited = _NO_SLOTS
        fixed = hidden_state.identities(model.non_trainable_variables)
        places = [n for n, each in enumerate(own) if hidden_state.identities([each]) & fixed]
        local = [*(own[place] for place in places), *sums]
        counts = hidden_state.metric_variables(model)
        # Some of the script do not reset; `others` has those of a finished call.
        metrics = [] if progress.finished else counts
        values = self.replicas.read([*local, *metrics])
        known = [*own, *(() if progress.finished else counts), *slots]
        if awaited.values:
            known += building.optimizer_variables(optimizer)
        owned = hidden_state.identities(known)
        self.begin()
        callbacks, lost = callback_state.capture([model, *self.callbacks], self._origins)
        validation = self.feed.validation
        extra: dict[str, Any] = {
            "trained": trained,
            "changed": self._change(),
            "local": places,
            "built": hidden_state.built_parts(model),
            "model": self.others.keys_of(own),
            "attributes": self.others.attributes_of(model),
            "sums": len(sums) + len(awaited.sums),
            "others": self.others.capture(owned, model),
            "callbacks": callbacks,
            "random": capture_random_state(),
            "data": self.feed.position(trained),
            "validation": None if validation is None else validation.position(trained),
        }
        lost += [*self.feed.lost, *getattr(validation, "lost", ()), *self.others.lost]
        self._tell(NOT_SAVED, lost)
        if extra["changed"]:
            self._tell(f"a callback has {extra['changed']}", ["an interrupted job cannot resume"])
        if not progress.step and trained > self._trained:
            self._tell(_NOT_RESTORED, self.others.missing)
        return FitState(
            progress,
            [*self.replicas.read_first([*own, *slots]), *awaited.values],
            [*values[: len(local)], *awaited.sums],
            self._held if self._held is not None and progress.step else values[len(local) :],
            extra,
        )

    def restore(self, state: FitState) -> None:
        """Restore everything except the metrics of an interrupted epoch."""
        self._awaited = restore_model(self.model, state, self.replicas, self.others)
        self._trained = int(state.extra["trained"])
        hidden_state.count_steps(self.model, self._trained)
        self._tell(_NOT_RESTORED, self.restore_callbacks(state))
        self.feed.restore(state.extra["data"])
        if self.feed.validation is not None and state.extra["validation"]:
            is_done = bool(state.extra.get("is_done"))
            self.feed.validation.restore(state.extra["validation"], is_done=is_done)
        restore_random_state(state.extra["random"])
        if not (state.progress.step or state.progress.finished):
            self.restore_metrics(state)
            self.feed.leave_epoch()

    def restore_callbacks(self, state: FitState) -> list[str]:
        """Restore the Python state of callbacks and model; return what starts fresh."""
        self.begin()
        return callback_state.restore(
            [self.model, *self.callbacks], state.extra["callbacks"], self._origins
        )

    def hold_metrics(self) -> None:
        """Keep the epoch's current metrics: validation uses the same variables."""
        self._held = self.replicas.read(hidden_state.metric_variables(self.model))

    def release_metrics(self) -> None:
        """Drop the kept metrics as another epoch begins."""
        self._held = None

    def restore_metrics(self, state: FitState) -> None:
        """Restore the epoch's metrics; Keras resets most of them as the next one begins."""
        found = hidden_state.metric_variables(self.model)
        if len(found) != len(state.metrics):
            self._tell(_NOT_RESTORED, ["the metrics of the epoch that was interrupted"])
            return
        self.replicas.assign(found, state.metrics, sums=True)

    def _change(self) -> str:
        """Return what a callback has done to the model that another process cannot repeat."""
        found = hidden_state.compiled_parts(self.model)
        pairs = zip(found, self._compiled, strict=True)
        if any(before is not None and now is not before for now, before in pairs):
            return "compiled the model"
        first, *later = self._trained_variables
        now = building.trained_variables(self.model)
        is_changed = bool(later) and (
            building.differ(first, later[0]) or all(building.differ(now, each) for each in later)
        )
        return _REFROZEN if is_changed else ""

    def _tell(self, what: str, names: Sequence[str]) -> None:
        """Warn once of each."""
        new = [name for name in sorted(set(names)) if (what, name) not in self._warned]
        self._warned.update((what, name) for name in new)
        if new:
            self.warn(f"{what}: {', '.join(new)}")


def _cannot_resume(change: str) -> TimonelError:
    return TimonelError(
        f"cannot resume: a callback has {change}",
        hint="do so between two calls of fit, or change the optimizer's values",
    )


def restore_model(
    model: Any, state: FitState, replicas: StrategyReplicas, others: ProcessVariables
) -> Slots:
    """Restore the variables of the model, its optimizer, and all others of the process."""
    if (change := state.extra["changed"]) and not state.progress.finished:
        raise _cannot_resume(change)
    # The optimizer's are restored when the training step has created them. They are returned: a
    # state that is saved before its first step includes them.
    keys, sums = state.extra["model"], int(state.extra["sums"])
    # tf-keras counts them among the model's own.
    others.set_again(model, state.extra["attributes"], {(tuple(key), n) for key, n in keys})
    own, count = building.model_variables(model), len(keys)
    local = state.local[: len(state.local) - sums]
    saved = list(state.extra["others"])
    if len(own) < count and is_without_call(model):
        # The step builds its parts.
        saved += [
            {"key": key, "number": number, "place": "", "values": values}
            for (key, number), values in zip(keys, state.variables, strict=False)
        ]
    else:
        # tf-keras lists the trained ones first, which may be others now.
        by_key = dict(zip(map(repr, others.keys_of(own)), own, strict=True))
        named = [repr((tuple(key), number)) for key, number in keys]
        if len(by_key) == len(own) and by_key.keys() == set(named):
            own = [by_key[key] for key in named]
        replicas.restore(own, state.variables[:count])
        replicas.assign([own[place] for place in state.extra["local"]], local, sums=False)
    optimizer = getattr(model, "optimizer", None)
    slots = Slots(state.variables[count:], state.local[len(local) :])

    def restore_optimizer() -> None:
        replicas.restore(building.optimizer_variables(optimizer), slots.values)
        replicas.assign(gradient_sums.sums_of(optimizer), slots.sums, sums=True)

    if optimizer is not None and slots.values:
        hidden_state.when_built(optimizer, model, restore_optimizer)
        own += building.optimizer_variables(optimizer)
    others.restore(saved, hidden_state.identities(own), model)
    return slots

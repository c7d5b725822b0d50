"""All TensorFlow variables and hash tables of the process, whoever holds them.

A model lists its own variables. Those of closures, losses, schedules, callbacks, second optimizers,
target networks and stateful layers are found here, as they are created: a resumed call matches them
by name, shape, dtype and order of creation.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import math
import sys
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from timonel.training.worker.inputs.building import optimizer_variables, optimizers_of
from timonel.training.worker.private import hidden_state
from timonel.training.worker.script_files import line_of_script
from timonel.training.worker.state.flat import checksum
from timonel.training.worker.state.variables import Array, StrategyReplicas

_Key = tuple[str, ...]
_LARGE = 1 << 24
"""Bytes from which the value of a variable that a call does not change is not saved."""


@dataclass
class _Created:
    key: _Key  # equals that of its counterpart in another process
    number: int  # how many with this key were created before it
    thing: Callable[[], Any]  # returns it; None once nobody holds it
    is_each: bool  # each replica updates its own value
    place: str  # where the script created it, as ``file:line``
    moment: int  # completed steps of the call during which it was created
    shape: tuple[int | None, ...] = ()  # empty for tables
    before: str | None = None
    """Checksum of its value when the call of ``fit`` began, if an earlier call has saved it."""
    begun: str | None = None
    """The same of any large one."""


@dataclass(eq=False)
class _Waiting:
    """Values that wait for the creation of their variables."""

    states: dict[_Key, list[Mapping[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    model: Callable[[], Any] = lambda: None  # returns what was restored; None once it is gone
    optimizers: Mapping[str, Callable[[], Any]] = field(default_factory=dict)
    """Those that the model held when it was restored, by place."""

    @classmethod
    def of_model(cls, model: Any) -> _Waiting:
        """Return values of a model, whose optimizers may be replaced before they are created."""
        held = {place: weakref.ref(each) for place, each in optimizers_of(model).items()}
        return cls(model=weakref.ref(model), optimizers=held)

    def of(self, key: _Key) -> list[Mapping[str, Any]]:
        """Return what waits for variables with a key, without that of replaced optimizers."""
        states = self.states.get(key, [])
        if states and (model := self.model()) is not None:
            now = optimizers_of(model)
            replaced = {at for at, held in self.optimizers.items() if now.get(at) is not held()}
            states[:] = [state for state in states if state.get("owner") not in replaced]
        return states

    def all(self) -> list[Mapping[str, Any]]:
        """Return all that waits."""
        return [state for key in self.states for state in self.of(key)]


class ProcessVariables:
    """Watches what a process creates; captures and restores it.

    Arguments ``owned`` are the ``id`` of TensorFlow's variables that are saved with the model.
    """

    def __init__(self, replicas: StrategyReplicas | None = None) -> None:
        self._replicas = replicas or StrategyReplicas(None)
        self._created: list[_Created] = []
        self._counts: Counter[_Key] = Counter()
        self._saved = self._begun = self._moment = 0
        """Number of those that an earlier call has saved; that existed as this one began; steps."""
        self.lost: list[str] = []  # at the last capture
        self._different: list[str] = []  # of those whose values were not saved
        self._pending = _Waiting()
        self._aside: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        """What waits until a model is trained again."""

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Watch the variables and tables that are created within the block."""
        with (
            tf.variable_creator_scope(self._create),
            hidden_state.creator_of_threads(self._create),
            hidden_state.tables_noted(self._note_table),
        ):
            yield

    def begin(self, owned: Collection[int]) -> None:
        """Note the values that earlier calls have saved: unless they change, they are known."""
        gc.collect()
        self._begun, self._moment = len(self._created), 0
        for each in self._created:
            each.before = ""  # a new process may draw another initial value
            if len(each.shape) and math.prod(size or 0 for size in each.shape) * 4 >= _LARGE:
                self._note_values([each], owned)
                each.before, each.begun = "", each.before or None
        self._note_values(self._created[: self._saved], owned)

    def step_ends(self) -> None:
        """Note the end of a step of the call."""
        self._moment += 1

    def keys_of(self, variables: Iterable[Any]) -> list[tuple[_Key, int]]:
        """Return by what each variable is matched; its name for one that was not watched."""
        known = {id(each.thing()): (each.key, each.number) for each in self._alive()}
        found = []
        for variable in variables:
            ids = hidden_state.identities([variable])
            keys = [known[each] for each in ids if each in known]
            found.append(keys[0] if keys else ((str(variable.name),), 0))
        return found

    def capture(self, owned: Collection[int], model: Any = None) -> list[dict[str, Any]]:
        """Return the values, except those from before the call that it has not changed.

        Restored ones that still wait for their creation are among them. With several workers this
        is collective.
        """
        owners = {
            identity: place
            for place, optimizer in ({} if model is None else optimizers_of(model)).items()
            for identity in hidden_state.identities(optimizer_variables(optimizer))
        }
        # Variables that were created since the call began may be garbage.
        if any(each.before is None and id(each.thing()) not in owned for each in self._alive()):
            gc.collect()
        others = [each for each in self._created if id(each.thing()) not in owned]
        self._saved, self.lost, unclear = len(self._created), [], self._unclear(owned)
        gathered = [each for each in others if each.is_each]
        kept = [each.thing() for each in gathered]
        # All workers must gather the same shapes, and do not drop variables at the same time.
        zeros = [
            np.zeros([size or 0 for size in each.shape], tf.as_dtype(each.key[2]).as_numpy_dtype)
            for each in gathered
        ]
        values = dict(zip(map(id, gathered), self._replicas.read(kept, zeros), strict=True))
        found: list[dict[str, Any]] = [dict(state) for state in self._pending.all()]
        for each in others:
            if each.thing() is None:
                continue
            try:
                first = self._first(each)
            except tf.errors.FailedPreconditionError:
                continue  # created by a trace that has not run yet
            if each.before and checksum(first) == each.before:
                continue
            if each.key in unclear and each.moment:
                self.lost.append(f"{each.key[0]} ({each.place})")
                continue
            saved = {"key": each.key, "number": each.number, "place": each.place}
            saved |= {"owner": owners.get(id(each.thing())), "values": values.get(id(each), first)}
            if each.begun and not each.is_each and (crc := checksum(first)) == each.begun:
                saved |= {"values": None, "checksum": crc}
            found.append(saved)
        return found

    def restore(
        self,
        saved: Sequence[Mapping[str, Any]],
        owned: Collection[int],
        model: Any = None,
    ) -> None:
        """Restore values from `capture`; those of later variables wait for their creation.

        Those of the model's optimizers wait for these alone: a callback may replace them.
        """
        self._pending = _Waiting() if model is None else _Waiting.of_model(model)
        self._different = []
        self._saved = len(self._created)
        alive = {(each.key, each.number): each for each in self._alive()}
        for state in saved:
            key = tuple(state["key"])
            found = alive.get((key, state["number"]))
            if state["values"] is None:
                if found is not None and checksum(self._first(found)) != state["checksum"]:
                    self._different.append(f"{key[0]} ({state['place']})")
            elif found is None or id(found.thing()) in owned:
                self._pending.states[key].append(state)
            else:
                self._assign(found, state["values"])
        kept = {(tuple(state["key"]), state["number"]) for state in saved}
        rest = [each for place, each in alive.items() if place not in kept and each.before == ""]
        self._note_values(rest, owned)  # the checkpoint did not need them

    def attributes_of(self, model: Any) -> list[tuple[str, _Key, int, bool]]:
        """Return name, key, number and trainability of the variables set on a model."""
        found = {name: each for name, each in vars(model).items() if isinstance(each, tf.Variable)}
        keys = self.keys_of(found.values())
        return [
            (name, key, number, bool(found[name].trainable))
            for name, (key, number) in zip(found, keys, strict=True)
        ]

    def set_again(
        self,
        model: Any,
        attributes: Sequence[Sequence[Any]],
        owned: Collection[tuple[_Key, int]] = (),  # saved with the model
    ) -> None:
        """Set variables on a model that callbacks have set on it, if their values are known."""
        for name, saved_key, number, trainable in attributes:
            key = tuple(saved_key)
            states = self._pending.of(key)
            is_known = (key, number) in owned or any(state["number"] == number for state in states)
            if hasattr(model, name) or not is_known:
                continue
            states.sort(key=lambda state: state["number"] != number)
            shape = ast.literal_eval(key[1])
            zeros = tf.zeros([size or 0 for size in shape], key[2])
            variable = tf.Variable(zeros, trainable, name=key[0].rpartition(":")[0], shape=shape)
            setattr(model, name, variable)

    def set_aside(self, model: Any) -> None:
        """Let values wait until the model is trained again; variables created meanwhile are new."""
        if self._pending.states:
            self._aside[model] = self._pending
        self._pending = _Waiting()

    def take_back(self, model: Any) -> None:
        """Let values that were set aside wait for their creation in a model's next call."""
        self._pending = self._aside.pop(model, None) or _Waiting()

    @property
    def missing(self) -> list[str]:
        """Names of the variables whose values still wait for their creation, or were not saved."""
        waiting = [f"{state['key'][0]} ({state['place']})" for state in self._pending.all()]
        return [*waiting, *self._different]

    def _create(self, next_creator: Callable[..., Any], **options: Any) -> Any:
        variable = next_creator(**options)
        shape = () if variable.shape.rank is None else tuple(variable.shape)
        # Seeds, moving averages and metrics differ between replicas.
        is_each = isinstance(variable, tf.distribute.DistributedValues) and not variable.trainable
        is_known = variable.shape.is_fully_defined() or not is_each
        has_value = variable.dtype not in {tf.string, tf.variant, tf.resource} and is_known
        # Where a backup of tf-keras is, which has a state of its own.
        if not has_value or str(variable.name).startswith(hidden_state.BACKUP):
            return variable
        key = (str(variable.name), str(shape), variable.dtype.name)
        self._note(key, variable, is_each=is_each, shape=shape)
        return variable

    def _note_table(self, table: Any) -> None:
        key = ("table", table.key_dtype.name, table.value_dtype.name)
        self._note(key, table, is_each=False)

    def _note(
        self, key: _Key, thing: Any, *, is_each: bool, shape: tuple[int | None, ...] = ()
    ) -> None:
        number = self._counts[key]
        self._counts[key] += 1
        each = _Created(key, number, weakref.ref(thing), is_each, _place(), self._moment, shape)
        self._created.append(each)
        if not (waiting := self._pending.of(key)):
            return
        state = waiting.pop(0)
        # The epoch has reset a model's metrics before its first step builds them.
        if not hidden_state.is_building_metrics():
            with tf.init_scope():
                self._assign(each, state["values"])

    def _note_values(self, those: Iterable[_Created], owned: Collection[int]) -> None:
        for each in those:
            if each.thing() is not None and id(each.thing()) not in owned:
                with contextlib.suppress(tf.errors.FailedPreconditionError):
                    each.before = checksum(self._first(each))

    def _unclear(self, owned: Collection[int]) -> set[_Key]:
        """Return the keys of variables that callbacks create at several steps of the call.

        A new process creates them from another step on, so that their order does not tell them.
        """
        moments: dict[_Key, set[int]] = defaultdict(set)
        for each in self._created[self._begun :]:
            if each.moment and id(each.thing()) not in owned:
                moments[each.key].add(each.moment)
        return {key for key, found in moments.items() if len(found) > 1}

    def _alive(self) -> list[_Created]:
        return [each for each in self._created if each.thing() is not None]

    def _first(self, each: _Created) -> Array:
        thing = each.thing()
        if each.key[0] == "table":
            return hidden_state.table_content(thing)
        return self._replicas.read_first([thing])[0]

    def _assign(self, each: _Created, values: Any) -> None:
        thing = each.thing()
        if each.key[0] == "table":
            hidden_state.set_table_content(thing, values)
        elif each.is_each:
            is_sum = thing.aggregation == tf.VariableAggregation.SUM
            self._replicas.assign([thing], [values], sums=is_sum)
        else:
            self._replicas.assign_all(thing, values)


def _place() -> str:
    """Return the line of the script, or of its own modules, that is being executed."""
    found = line_of_script(sys._getframe(2))
    return "created by a library" if found is None else f"{found[1]}:{found[2]}"

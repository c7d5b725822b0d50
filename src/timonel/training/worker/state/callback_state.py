"""State of callbacks as plain data.

A callback with ``get_state`` and ``set_state`` defines its state itself. For others, it is all
attributes that are plain data or arrays, such as the patience and best weights of
``EarlyStopping``.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from timonel.training.worker import redirected_saves
from timonel.training.worker.state import checkpoint_format

_NOT_STATE = frozenset({"model", "_model", "params", "validation_data", "append_header"})
"""Attributes of the process, not of the state.

The last one is CSVLogger's: whether its file still needs a header.
"""


def listed(given: Any) -> list[Any]:
    """Return the callbacks of a ``fit`` call as a list."""
    if given is None:
        return []
    if isinstance(given, list | tuple):
        return list(given)
    return list(given.callbacks) if hasattr(given, "callbacks") else [given]


def go_on(keras: Any, given: Any) -> None:
    """Make callbacks append to the files written before the restart."""
    for callback in listed(given):
        if isinstance(callback, keras.callbacks.CSVLogger):
            callback.append = True


def capture(callbacks: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the state of each callback, in order."""
    return [{"class": _class_of(callback), "state": _state_of(callback)} for callback in callbacks]


def restore(callbacks: Sequence[Any], saved: Sequence[Mapping[str, Any]]) -> list[str]:
    """Restore the state from `capture`; return the classes of callbacks that changed."""
    others = []
    for callback, found in zip(callbacks, saved, strict=False):
        if found["class"] != _class_of(callback):
            others.append(f"{found['class']} (now {_class_of(callback)})")
        elif hasattr(callback, "set_state"):
            callback.set_state(copy.deepcopy(found["state"]))
        else:
            for name in found["state"].keys() - _NOT_STATE:
                # The chief saved the state: its paths are not those of other tasks.
                if not redirected_saves.holds(getattr(callback, name, None)):
                    setattr(callback, name, copy.deepcopy(found["state"][name]))
    others += [str(found["class"]) for found in saved[len(callbacks) :]]
    return others


def _state_of(callback: Any) -> Any:
    if hasattr(callback, "get_state") and hasattr(callback, "set_state"):
        state = callback.get_state()
        checkpoint_format.encode(state, [])
        return copy.deepcopy(state)
    return {
        name: copy.deepcopy(value)
        for name, value in vars(callback).items()
        if name not in _NOT_STATE and _is_plain(value)
    }


def _is_plain(value: Any) -> bool:
    try:
        checkpoint_format.encode(value, [])
    except checkpoint_format.NotPlainError:
        return False
    return True


def _class_of(callback: Any) -> str:
    return type(callback).__qualname__

"""The callbacks of a ``fit`` call, and their state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from timonel.training.worker import redirected_saves
from timonel.training.worker.state import python_state
from timonel.training.worker.state.python_state import Origins


def listed(given: Any) -> list[Any]:
    """Return the callbacks of a ``fit`` call as a list."""
    if given is None:
        return []
    if isinstance(given, list | tuple):
        return list(given)
    return list(given.callbacks) if hasattr(given, "callbacks") else [given]


def add(arguments: dict[str, Any], callback: Any) -> None:
    """Append a callback to the arguments of a ``fit`` call."""
    given: Any = arguments.get("callbacks")
    if hasattr(given, "callbacks"):  # a CallbackList, which Keras uses unchanged
        callback.set_model(given.model)
        callback.set_params(given.params)
        given.callbacks.append(callback)
    else:
        arguments["callbacks"] = [*listed(given), callback]


def callback_of(keras: Any, *, is_async_safe: bool = True, **methods: Callable[..., Any]) -> Any:
    """Return a callback with these methods; they get the callback, then Keras' arguments."""

    def by_place(method: Callable[..., Any]) -> Callable[..., Any]:
        # Keras gives the last argument, the logs, by place or by name.
        return lambda callback, *given, **logs: method(callback, *given, *logs.values())

    # Both allow Keras to pass values that are still on the device, and to call the callback beside
    # the training loop; otherwise Keras would wait for each step's result.
    marks = {"async_safe": is_async_safe, "_supports_tf_logs": True}
    own = {name: by_place(method) for name, method in methods.items()}
    return type("OwnCallback", (keras.callbacks.Callback,), {**marks, **own})()


def go_on(keras: Any, given: Any) -> None:
    """Make callbacks append to the files written before the restart."""
    for callback in listed(given):
        if isinstance(callback, keras.callbacks.CSVLogger):
            callback.append = True


def capture(
    callbacks: Sequence[Any], origins: Sequence[Origins | None] = ()
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the state of each callback, in order, and what cannot be saved, as text."""
    states, others = [], []
    for callback, origin in zip_longest(callbacks, origins):
        state, missing = python_state.capture(callback, origins=origin)
        states.append({"class": _class_of(callback), "state": state})
        others += [f"{_class_of(callback)}.{name}" for name in missing]
    return states, others


def restore(
    callbacks: Sequence[Any],
    saved: Sequence[Mapping[str, Any]],
    origins: Sequence[Origins | None] = (),
) -> list[str]:
    """Restore the state from `capture`; return what starts fresh, as text."""
    others = []
    for callback, found, origin in zip(
        callbacks, saved, origins or [None] * len(callbacks), strict=False
    ):
        name = _class_of(callback)
        if found["class"] != name:
            others.append(f"{found['class']} (now {name})")
            continue
        # The chief saved the state: its paths are not those of other tasks.
        missing = python_state.restore(callback, found["state"], _is_of_task, origin)
        others += [f"{name}.{each}" for each in missing]
    others += [str(found["class"]) for found in saved[len(callbacks) :]]
    return others


def _is_of_task(name: str, value: Any) -> bool:
    del name
    return redirected_saves.holds(value)


def _class_of(callback: Any) -> str:
    return type(callback).__qualname__

"""Python state of the script's callbacks and sequences: all attributes that can be pickled.

An object with ``get_state`` and ``set_state`` defines its state itself. Otherwise plain data and
arrays are stored as they are, and other attributes as pickles that hold data only: sets, deques,
generators of Python and NumPy, and objects of the script's own classes. They are restored into the
objects that the script has made again, so that what it shares stays shared.
"""

from __future__ import annotations

import copy
import importlib
import io
import pickle
import random
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Mapping, MutableMapping
from types import ModuleType
from typing import Any

import numpy as np
import tensorflow as tf

from timonel.errors import TimonelError
from timonel.training.worker.script_files import is_class_of_script
from timonel.training.worker.state import checkpoint_format

_MODULES = frozenset(
    {
        *("builtins", "collections", "datetime", "decimal", "fractions", "pathlib", "random"),
        *("pathlib._local", "uuid"),
    }
)
"""Standard modules whose classes hold data; paths of Python 3.13 say `pathlib._local`."""
_NOT_DATA = frozenset({type, property, super, classmethod, staticmethod, random.SystemRandom})
_CONSTRUCTORS = frozenset(
    {
        "_reconstruct", "_frombuffer", "scalar", "ndarray", "dtype",
        "__generator_ctor", "__bit_generator_ctor", "__randomstate_ctor",
        "__pyx_unpickle_SeedSequence",
    }
)  # fmt: skip
"""Functions and classes with which NumPy's pickles begin."""
_OWN = "get_state()"
"""Name of the state that an object defines itself."""
_KNOWN = (tf.Variable, tf.Module, tf.data.Dataset, tf.random.Generator, ModuleType)


class NotSavedError(TimonelError):
    """An attribute's state cannot be saved."""


class _Instance:
    """Stands for an object of one of the script's classes in a pickle."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name
        self.attributes: dict[str, Any] = {}

    def __setstate__(self, attributes: dict[str, Any]) -> None:
        self.attributes = attributes

    def is_like(self, thing: Any) -> bool:
        kind = type(thing)
        return (kind.__module__, kind.__qualname__) == (self.module, self.name)

    def made(self) -> Any:
        """Return a new object of the class, without attributes."""
        found: Any = importlib.import_module(self.module)
        for part in self.name.split("."):
            found = getattr(found, part, None)
        if not isinstance(found, type):
            raise NotSavedError(f"{self.module}.{self.name} is no class of the script any more")
        return object.__new__(found)


def capture(thing: Any, ignored: Collection[str] = ()) -> tuple[dict[str, Any], list[str]]:
    """Return an object's state, and the names of attributes that cannot be saved."""
    has_protocol = hasattr(thing, "get_state") and hasattr(thing, "set_state")
    attributes = {_OWN: thing.get_state()} if has_protocol else vars(thing)
    plain: dict[str, Any] = {}
    pickled: dict[str, Any] = {}
    others = []
    for name, value in attributes.items():
        if name in ignored or _is_known(value):
            continue
        if _is_plain(value):
            plain[name] = copy.deepcopy(value)
            continue
        try:
            pickled[name] = np.frombuffer(_pickled(value), np.uint8)
        except Exception:  # noqa: BLE001 - whatever its own code raises, it cannot be saved
            others.append(name)
    return {"plain": plain, "pickled": pickled}, others


def restore(thing: Any, state: Mapping[str, Any], skips: Callable[[Any], bool]) -> list[str]:
    """Restore the state from `capture`; return attributes that cannot be restored."""
    others = []
    for name in [*state["plain"], *state["pickled"]]:
        old = getattr(thing, name, None)
        if skips(old):
            continue
        try:
            if name in state["plain"]:
                saved = copy.deepcopy(state["plain"][name])
            else:
                saved = _unpickled(state["pickled"][name])
            if name == _OWN:
                thing.set_state(saved)
            else:
                setattr(thing, name, _merged(old, saved, {}))
        except Exception:  # noqa: BLE001 - its class has changed
            others.append(name)
    return others


def _is_plain(value: Any) -> bool:
    try:
        checkpoint_format.encode(value, [])
    except checkpoint_format.NotPlainError:
        return False
    return True


def _is_known(value: Any) -> bool:
    """Return whether a value has no state, or state that is saved with the variables."""
    if isinstance(value, _KNOWN) or (callable(value) and not is_class_of_script(type(value))):
        return True
    kind = type(value)
    return any(base.__module__.partition(".")[0] in {"keras", "tf_keras"} for base in kind.__mro__)


class _Pickler(pickle.Pickler):
    def reducer_override(self, thing: Any) -> Any:
        kind = type(thing)
        if not callable(thing) and _is_known(thing):
            raise NotSavedError(f"a {kind.__name__} is not data")
        is_usual = (
            is_class_of_script(kind)
            and type(getattr(thing, "__dict__", None)) is dict
            and all(getattr(kind, n) is getattr(object, n) for n in ("__reduce__", "__reduce_ex__"))
            and not issubclass(kind, type | list | dict | set | frozenset | tuple)
        )
        if not is_usual:
            return NotImplemented
        return _Instance, (kind.__module__, kind.__qualname__), vars(thing)


class _Unpickler(pickle.Unpickler):
    """Loads data only: no function of a pickle's choice is called."""

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        is_numpy = module.partition(".")[0] == "numpy"
        if found is _Instance or (is_numpy and name in _CONSTRUCTORS):
            return found
        if isinstance(found, type) and found not in _NOT_DATA:
            is_numpys = is_numpy and issubclass(
                found, np.generic | np.random.BitGenerator | np.random.SeedSequence | np.dtype
            )
            if module in _MODULES or is_numpys or is_class_of_script(found):
                return found
        raise NotSavedError(f"{module}.{name} is not data")


def _pickled(value: Any) -> bytes:
    stream = io.BytesIO()
    _Pickler(stream, protocol=5).dump(value)
    content = stream.getvalue()
    _unpickled(content)  # what cannot be read again is told of now, not after a restart
    return content


def _unpickled(content: Any) -> Any:
    return _Unpickler(io.BytesIO(bytes(content))).load()


def _merged(old: Any, new: Any, done: dict[int, Any]) -> Any:
    """Return the saved value ``new``, as the script's object ``old`` if that can take it."""
    if id(new) in done:
        return done[id(new)][0]
    if isinstance(new, _Instance):
        thing = old if new.is_like(old) else new.made()
        done[id(new)] = thing, new
        known = vars(thing)
        for name in known.keys() - new.attributes.keys():
            del known[name]
        for name, value in new.attributes.items():
            known[name] = _merged(known.get(name), value, done)
        return thing
    taker = _TAKERS.get(type(new))
    if taker is None:
        return new
    result = old if type(old) is type(new) else new
    if isinstance(new, np.ndarray) and not _fits(result, new):
        result = new
    done[id(new)] = result, new
    taker(result, new, done)
    return result


def _fits(old: Any, new: Any) -> bool:
    same = (old.shape, old.dtype) == (new.shape, new.dtype)
    return bool(same and old.flags.writeable)


def _take_list(old: list[Any], new: list[Any], done: dict[int, Any]) -> None:
    before = list(old)
    old[:] = [
        _merged(before[place] if place < len(before) else None, item, done)
        for place, item in enumerate(list(new))
    ]


def _take_items(old: Any, new: Any, done: dict[int, Any]) -> None:
    items = [_merged(None, item, done) for item in new]
    old.clear()
    (old.update if isinstance(old, set) else old.extend)(items)


def _take_dict(old: MutableMapping[Any, Any], new: Any, done: dict[int, Any]) -> None:
    items = {key: _merged(old.get(key), value, done) for key, value in new.items()}
    old.clear()
    old.update(items)


_TAKERS: dict[type, Callable[[Any, Any, dict[int, Any]], None]] = {
    list: _take_list,
    deque: _take_items,
    dict: _take_dict,
    Counter: _take_dict,
    OrderedDict: _take_dict,
    defaultdict: _take_dict,
    set: _take_items,
    np.ndarray: lambda old, new, _: np.copyto(old, new),
    np.random.Generator: lambda old, new, _: setattr(
        old.bit_generator, "state", new.bit_generator.state
    ),
    np.random.RandomState: lambda old, new, _: old.set_state(new.get_state()),
    random.Random: lambda old, new, _: old.setstate(new.getstate()),
}

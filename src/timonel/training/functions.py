"""Python functions as programs: how a task finds one, and what it is called with.

A function that another process can import is named, and its module imported there. Any other (of
``__main__``, of a notebook, a closure, a lambda) travels by value, with what it refers to.
"""

from __future__ import annotations

import inspect
import json
import linecache
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle

from timonel.errors import SpecError

Function = Callable[..., Any]


@dataclass(frozen=True)
class Call:
    """How a task calls a function: by its name and JSON, or from bytes that hold both.

    Attributes:
        target: ``module:qualname``, of one that can be imported.
        keywords: What it is called with then.
        pickled: The function and its keywords by value, where there is no other way.
    """

    target: str | None
    keywords: Mapping[str, Any]
    pickled: bytes | None


def call_of(function: Function, keywords: Mapping[str, Any]) -> Call:
    """Return how another process calls ``function``.

    Raises:
        SpecError: It cannot.
    """
    target = reference(function)
    if target is not None and is_json(keywords):
        return Call(target, dict(keywords), None)
    return Call(None, {}, by_value(function, keywords))


def described(function: Function) -> str:
    """Return what people call a function."""
    inner = inspect.unwrap(function)
    return str(getattr(inner, "__qualname__", type(inner).__name__))


def reference(function: Function) -> str | None:
    """Return ``module:qualname`` where another process can import the function, else None."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not module or not name or module == "__main__" or "<" in name:
        return None
    found: Any = sys.modules.get(module)
    if not _has_source(found):
        return None
    for part in name.split("."):
        found = getattr(found, part, None)
    return f"{module}:{name}" if found is function else None


def check_call(function: Function, keywords: Mapping[str, Any]) -> None:
    """Check that the function can be called with these keywords.

    Raises:
        SpecError: It takes others, or needs more.
    """
    try:
        inspect.signature(function).bind(**keywords)
    except TypeError as error:
        raise SpecError(
            f"expected params that are arguments of {described(function)}, got "
            f"{', '.join(keywords) or 'none'}: {error}"
        ) from None
    except ValueError:
        return  # a function of C code says nothing of its arguments


def is_json(keywords: Mapping[str, Any]) -> bool:
    """Tell whether keywords come back from JSON as they were."""
    try:
        return bool(json.loads(json.dumps(keywords, allow_nan=False)) == keywords)
    except (TypeError, ValueError, RecursionError):
        return False


def by_value(function: Function, keywords: Mapping[str, Any]) -> bytes:
    """Return a function and its keywords as bytes, for `pickle.loads` in a task.

    Raises:
        SpecError: Something that they refer to exists in this process only.
    """
    try:
        return cloudpickle.dumps((function, dict(keywords)))  # type: ignore[no-any-return] # untyped
    except Exception as error:  # noqa: BLE001 - whatever an object's own pickling raises
        culprit = _culprit(function, keywords)
        raise SpecError(
            f"expected a function that another process can be given, got {described(function)}, "
            f"which refers to {culprit or 'something'} that cannot be pickled: {_line(error)}",
            hint="make it inside the function, or move the function to a module",
        ) from None


def source_of(function: Function) -> tuple[str, str]:
    """Return the file that a function is in, and its text; the text may be unknown (empty)."""
    inner = inspect.unwrap(function)
    code = getattr(getattr(inner, "__func__", inner), "__code__", None)
    if code is None:
        code = getattr(getattr(inner, "func", None), "__code__", None)  # functools.partial
    if code is None:
        return f"<{described(function)}>", ""
    # A notebook's cell is no file; IPython has left its lines here.
    return code.co_filename, "".join(linecache.getlines(code.co_filename))


def uses_legacy_keras(function: Function) -> bool:
    """Tell whether a function refers to tf-keras by a name that its text does not show."""
    return any(_package(value) == "tf_keras" for value in _referred(function).values())


def import_path() -> tuple[str, ...]:
    """Return where this process finds modules, apart from what every Python has."""
    own = tuple(str(Path(place).resolve()) for place in (sys.prefix, sys.base_prefix))
    places = (str(Path(place or ".").resolve()) for place in sys.path)
    return tuple(dict.fromkeys(place for place in places if not place.startswith(own)))


def _has_source(module: ModuleType | None) -> bool:
    origin = getattr(getattr(module, "__spec__", None), "origin", None)
    return isinstance(origin, str) and origin.endswith(".py")


def _referred(function: Function) -> dict[str, Any]:
    """Return the globals and closed-over values that a function names."""
    inner = inspect.unwrap(function)
    inner = getattr(inner, "__func__", inner)
    if not inspect.isfunction(inner):
        return {}
    names = set(inner.__code__.co_names)
    found = {name: value for name, value in inner.__globals__.items() if name in names}
    cells = zip(inner.__code__.co_freevars, inner.__closure__ or (), strict=False)
    for name, cell in cells:
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not bound yet
            continue
    return found


def _culprit(function: Function, keywords: Mapping[str, Any]) -> str | None:
    for name, value in {**_referred(function), **keywords}.items():
        if value is function:
            continue
        try:
            cloudpickle.dumps(value)
        except Exception:  # noqa: BLE001 - whatever an object's own pickling raises
            return f"{name!r} ({type(value).__name__})"
    return None


def _package(value: Any) -> str:
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    return str(name or "").partition(".")[0]


def _line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]

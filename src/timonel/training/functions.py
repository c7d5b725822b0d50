"""Python functions as training programs, passed by reference or by value.

A function that another process can import is passed by name. Any other (from ``__main__``, a
notebook, a closure, a lambda) is pickled together with the objects it refers to.
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
class FunctionCall:
    """A function call in a task: by name with keywords, or pickled."""

    target: str | None  # ``module:qualname`` of an importable function
    keywords: Mapping[str, Any]
    pickled: bytes | None  # function and keywords by value


def call_of(function: Function, keywords: Mapping[str, Any]) -> FunctionCall:
    """Return how another process calls ``function``."""
    target = reference(function)
    if target is not None and is_json(keywords):
        return FunctionCall(target, dict(keywords), None)
    return FunctionCall(None, {}, by_value(function, keywords))


def described(function: Function) -> str:
    """Return a function's display name."""
    inner = inspect.unwrap(function)
    return str(getattr(inner, "__qualname__", type(inner).__name__))


def reference(function: Function) -> str | None:
    """Return ``module:qualname`` if another process can import the function, else None."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not module or not name or module == "__main__" or "<" in name:
        return None
    found: Any = sys.modules.get(module)
    origin = getattr(getattr(found, "__spec__", None), "origin", None)
    if not isinstance(origin, str) or not origin.endswith(".py"):
        return None
    for part in name.split("."):
        found = getattr(found, part, None)
    return f"{module}:{name}" if found is function else None


def check_call(function: Function, keywords: Mapping[str, Any]) -> None:
    """Check that the function accepts these keywords."""
    try:
        inspect.signature(function).bind(**keywords)
    except TypeError as error:
        raise SpecError(
            f"the params ({', '.join(keywords) or 'none'}) do not match the arguments of "
            f"{described(function)}: {error}"
        ) from None
    except ValueError:
        return  # functions implemented in C may have no signature


def is_json(keywords: Mapping[str, Any]) -> bool:
    """Tell whether the keywords survive a JSON round trip unchanged."""
    try:
        return bool(json.loads(json.dumps(keywords, allow_nan=False)) == keywords)
    except (TypeError, ValueError, RecursionError):
        return False


def by_value(function: Function, keywords: Mapping[str, Any]) -> bytes:
    """Pickle a function and its keywords, for `pickle.loads` in a task."""
    try:
        return cloudpickle.dumps((function, dict(keywords)))  # type: ignore[no-any-return] # untyped
    except Exception as error:  # noqa: BLE001 - whatever an object's own pickling raises
        culprit = _culprit(function, keywords)
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise SpecError(
            f"cannot send {described(function)} to another process: it refers to "
            f"{culprit or 'an object'}, which cannot be pickled: {reason}",
            hint="create that object inside the function, or move the function to a module",
        ) from None


def source_of(function: Function) -> tuple[str, str]:
    """Return the file and text, which may be empty, of a function's source."""
    inner = inspect.unwrap(function)
    code = getattr(getattr(inner, "__func__", inner), "__code__", None)
    if code is None:
        code = getattr(getattr(inner, "func", None), "__code__", None)  # functools.partial
    if code is None:
        return f"<{described(function)}>", ""
    if code.co_filename == "<string>":
        return code.co_filename, ""  # Python 3.13 has the lines of ``python -c`` under this name
    # A notebook cell is not a file; IPython stores its lines in linecache.
    return code.co_filename, "".join(linecache.getlines(code.co_filename))


def uses_legacy_keras(function: Function) -> bool:
    """Tell whether a function refers to tf-keras through globals or closed-over values."""
    return any(_package(value) == "tf_keras" for value in _referred(function).values())


def import_path() -> tuple[str, ...]:
    """Return this process's import path without Python's own folders."""
    own = tuple(str(Path(place).resolve()) for place in (sys.prefix, sys.base_prefix))
    places = (str(Path(place or ".").resolve()) for place in sys.path)
    return tuple(dict.fromkeys(place for place in places if not place.startswith(own)))


def _referred(function: Function) -> dict[str, Any]:
    """Return the globals and closed-over values that a function refers to."""
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

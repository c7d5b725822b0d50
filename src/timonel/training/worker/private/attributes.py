"""Replace attributes of TensorFlow's and Keras' objects, classes and modules."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any


def wrap(holder: Any, name: str, replacement: Callable[..., Any]) -> None:
    """Replace a function permanently; the replacement gets the original first. Idempotent."""
    original = getattr(holder, name)
    if hasattr(original, "is_timonels"):
        return

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return replacement(original, *args, **kwargs)

    wrapper.is_timonels = True  # type: ignore[attr-defined] # marks the replacement
    setattr(holder, name, wrapper)


@contextlib.contextmanager
def replaced(holder: Any, **values: Any) -> Iterator[None]:
    """Replace attributes within the block."""
    before = {name: vars(holder)[name] for name in values if name in vars(holder)}
    for name, value in values.items():
        setattr(holder, name, value)
    try:
        yield
    finally:
        for name in values:
            if name in before:
                setattr(holder, name, before[name])
            else:
                delattr(holder, name)

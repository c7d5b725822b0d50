"""Replace attributes of TensorFlow's and Keras' objects, classes and modules."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any


def wrap(holder: Any, name: str, wrapper_of: Callable[[Any], Any]) -> None:
    """Replace a function by a wrapper, permanently; a second call changes nothing."""
    original = getattr(holder, name)
    if not hasattr(original, "is_timonels"):
        wrapper: Any = functools.wraps(original)(wrapper_of(original))
        wrapper.is_timonels = True
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

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from timonel.training.worker.private.attributes import replaced, wrap


class Base:
    def name(self) -> str:
        """Return a name."""
        return "base"


class Derived(Base):
    pass


def loud(original: Any, self: Any) -> Any:
    return original(self).upper()


def test_a_function_is_wrapped_once() -> None:
    holder = SimpleNamespace(name=lambda self: self)
    wrap(holder, "name", loud)
    wrapper = holder.name
    wrap(holder, "name", loud)
    assert holder.name is wrapper
    assert holder.name("a") == "A"
    with pytest.raises(AttributeError):
        wrap(holder, "other", loud)


def test_attributes_of_a_block_end_with_it() -> None:
    found = Derived()
    found.own = 1  # type: ignore[attr-defined] # a test value
    with contextlib.suppress(ZeroDivisionError), replaced(found, own=2, name=lambda: "other"):
        assert (found.own, found.name()) == (2, "other")  # type: ignore[attr-defined]
        raise ZeroDivisionError
    assert vars(found) == {"own": 1}
    with replaced(Derived, name=lambda _: "derived"):
        assert (found.name(), Base().name()) == ("derived", "base")
    assert found.name() == "base"

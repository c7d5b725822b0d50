"""Parse per-model settings of the form ``VALUE`` or ``MODEL=VALUE``. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from timonel.errors import SpecError
from timonel.serving.settings import AUTO, EVERY_MODEL


def by_model(values: Iterable[str], what: str) -> dict[str, tuple[str, ...]]:
    """Group values by model; values for all models are under `EVERY_MODEL`.

    Args:
        values: Items of the form ``VALUE`` or ``MODEL=VALUE``.
        what: What a value is, for the error message.

    Raises:
        SpecError: A model or a value is empty.
    """
    found: dict[str, tuple[str, ...]] = defaultdict(tuple)
    for text in values:
        left, equals, right = text.rpartition("=")
        model, value = left if equals else EVERY_MODEL, right
        if not model or not value:
            raise SpecError(f"expected {what}, or MODEL={what}, got {text!r}")
        found[model] += (value,)
    return dict(found)


def runtime_choice(values: Iterable[str], default: str = AUTO) -> dict[str, Any]:
    """Return the settings ``name`` and ``by_model`` of `RuntimeSettings`.

    Args:
        values: Items of the form ``RUNTIME`` or ``MODEL=RUNTIME``.
        default: The runtime of models without one.

    Raises:
        SpecError: A model or a runtime is empty, or a model has two runtimes.
    """
    found = by_model(values, "a runtime")
    for model, names in found.items():
        if len(names) > 1:
            whose = "all models" if model == EVERY_MODEL else model
            raise SpecError(f"expected one runtime for {whose}, got {', '.join(names)}")
    (name,) = found.pop(EVERY_MODEL, (default,))
    return {"name": name, "by_model": {model: names[0] for model, names in found.items()}}

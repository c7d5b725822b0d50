"""Interface of features that hook into ``fit`` calls; `managed.plugins_of` lists them in order."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


class FitPlugin:
    """A feature that patches TensorFlow or Keras, or hooks into ``fit`` calls; does nothing."""

    is_for_inner_fits = False
    """Whether it applies to a ``fit`` inside a callback of another, too."""

    def install(self) -> None:
        """Patch TensorFlow or Keras; called once, before the script builds a model."""

    def fit_begins(self, model: Any, arguments: dict[str, Any]) -> None:
        """Change a call's model and arguments, before the model's state is restored."""

    def around_fit(
        self,
        arguments: dict[str, Any],  # noqa: ARG002 - for subclasses
    ) -> contextlib.AbstractContextManager[None]:
        """Surround a call; not used if the call had finished before a restart."""
        return contextlib.nullcontext()

    def fit_ends(self, model: Any, history: Any) -> None:
        """Extend a call's ``History``, once the final state is saved."""


@dataclass(frozen=True)
class Patch(FitPlugin):
    """A plug-in that only patches TensorFlow or Keras."""

    patch: Callable[[], object]

    def install(self) -> None:
        """Apply the patch."""
        self.patch()


@dataclass(frozen=True)
class Around(FitPlugin):
    """A plug-in that only surrounds calls, given their arguments."""

    surround: Callable[[dict[str, Any]], contextlib.AbstractContextManager[None]]
    is_for_inner_fits = True

    def around_fit(self, arguments: dict[str, Any]) -> contextlib.AbstractContextManager[None]:
        """Surround a call."""
        return self.surround(arguments)

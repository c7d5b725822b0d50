"""Reject ``fit`` of the Keras that the job does not wrap.

Which of the two a script uses is determined from its text before it starts. If that is wrong,
training would silently be neither distributed nor saved.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NoReturn

from timonel.errors import SpecError

_OTHER = {"keras": "tf_keras", "tf_keras": "keras"}
_SWITCH = {"keras": "TF_USE_LEGACY_KERAS=1", "tf_keras": "TF_USE_LEGACY_KERAS=0"}


def refuse(wrapped: str) -> None:
    """Make ``Model.fit`` of the other Keras fail, imported or not.

    Args:
        wrapped: The Keras that the job wraps, ``keras`` or ``tf_keras``.
    """
    other = sys.modules.get(_OTHER[wrapped])
    if other is None:
        sys.meta_path.insert(0, _Finder(wrapped))
    else:
        _guard(other, wrapped)


class _Finder(MetaPathFinder):
    """Import hook that patches the other Keras once it is loaded."""

    def __init__(self, wrapped: str) -> None:
        self._wrapped = wrapped

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG002 - the import system's signature
        target: ModuleType | None = None,  # noqa: ARG002 - likewise
    ) -> ModuleSpec | None:
        if fullname != _OTHER[self._wrapped]:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                _guard(module, self._wrapped)

            setattr(spec.loader, "exec_module", exec_module)  # noqa: B010 - of this one loader
        return spec


def _guard(other: Any, wrapped: str) -> None:
    def fit(_model: object, *_args: object, **_kwargs: object) -> NoReturn:
        raise SpecError(
            f"expected a model of {wrapped}, which this job wraps, got fit of {other.__name__}",
            hint=f"name one of the two in the script only, or set {_SWITCH[wrapped]} for the job",
        )

    other.Model.fit = fit

"""Do something when the program first imports a module, before it does.

What a script writes to ``os.environ`` before it imports TensorFlow then has the effect that it has
without a job.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


def call_before_import(names: Collection[str], prepare: Callable[[], None]) -> None:
    """Call ``prepare`` once, before the first of these modules is imported.

    It may import them itself.
    """
    sys.meta_path.insert(0, _Finder(names, prepare))


class _Finder(MetaPathFinder):
    def __init__(self, names: Collection[str], prepare: Callable[[], None]) -> None:
        self._names = names
        self._prepare = prepare

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG002 - the import system's signature
        target: ModuleType | None = None,  # noqa: ARG002 - likewise
    ) -> ModuleSpec | None:
        if fullname not in self._names:
            return None
        sys.meta_path.remove(self)
        self._prepare()
        found = sys.modules.get(fullname)
        if found is None:
            return None
        return ModuleSpec(fullname, _Imported(found), is_package=hasattr(found, "__path__"))


class _Imported(Loader):
    """Gives a module that was imported meanwhile; Python would execute it twice."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._spec = module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        del spec
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec

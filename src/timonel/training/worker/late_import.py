"""Do something when the program first imports a module, before or after it does.

What a script writes to ``os.environ`` before it imports TensorFlow then has the effect that it has
without a job.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Collection, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


def call_before_import(names: Collection[str], prepare: Callable[[], None]) -> None:
    """Call ``prepare``, which may import them, once before one of these modules is imported."""

    def find(name: str) -> ModuleSpec | None:
        prepare()
        found = sys.modules.get(name)
        if found is None:
            return None
        return ModuleSpec(name, _Imported(found), is_package=hasattr(found, "__path__"))

    sys.meta_path.insert(0, _Finder(names, find))


def call_after_import(name: str, change: Callable[[ModuleType], None]) -> None:
    """Call ``change`` with a module once it is imported, or now if it is."""
    if name in sys.modules:
        change(sys.modules[name])
        return

    def find(name: str) -> ModuleSpec | None:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                change(module)

            setattr(spec.loader, "exec_module", exec_module)  # noqa: B010 - of this one loader
        return spec

    sys.meta_path.insert(0, _Finder((name,), find))


class _Finder(MetaPathFinder):
    """Calls a function, once, for the specification of the first of these modules."""

    def __init__(self, names: Collection[str], find: Callable[[str], ModuleSpec | None]) -> None:
        self._names = names
        self._find = find

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG002 - the import system's signature
        target: ModuleType | None = None,  # noqa: ARG002 - likewise
    ) -> ModuleSpec | None:
        if fullname not in self._names:
            return None
        sys.meta_path.remove(self)
        return self._find(fullname)


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

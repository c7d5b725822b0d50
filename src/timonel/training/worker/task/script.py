"""Run the user's script, notebook, module or function as Python itself would.

Scripts, notebooks and modules run as ``__main__``, which they stay afterwards: the export of the
model still needs their layers and functions.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import linecache
import logging
import pickle
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from timonel.errors import NotFoundError
from timonel.training import notebook
from timonel.training.spec import TrainSpec

logger = logging.getLogger(__name__)


def run_program(spec: TrainSpec, argv: Sequence[str], keywords: Mapping[str, Any]) -> Any:
    """Run a job's program; return a function's return value.

    Args:
        spec: The tasks' document.
        argv: Its ``sys.argv``.
        keywords: Keywords for a function in addition to its own.

    Raises:
        BaseException: Any exception of the program, unchanged.
    """
    if spec.entry == "notebook":
        run_notebook(argv)
    elif spec.entry == "module":
        run_module(spec.target or "", argv)
    elif spec.entry == "function":
        return _run_function(spec, argv, keywords)
    else:
        run_script(argv)
    return None


def run_script(argv: Sequence[str]) -> None:
    """Run the script ``argv[0]`` with ``argv`` as ``sys.argv``."""
    path = Path(argv[0])
    source = path.read_bytes()
    sys.path[0] = str(path.parent)
    module = _become_main(argv, __file__=str(path), __cached__=None, __loader__=None)
    _execute(source, str(path), module)


def run_notebook(argv: Sequence[str]) -> None:
    """Run the notebook ``argv[0]`` cell by cell, like a fresh kernel."""
    path = argv[0]
    cells = notebook.read_cells(Path(path))
    for cell in cells:
        for text in cell.left_out:
            logger.info("cell %d: left out %s", cell.number, text)
    sys.path[0] = str(Path(path).parent)
    module = _become_main(argv, __file__=path, __loader__=None, display=print)
    # A notebook without magics of its own should see that it runs in no kernel.
    shell = _Shell(path, module) if any("register_" in cell.source for cell in cells) else None
    module.__dict__["get_ipython"] = lambda: shell
    for cell in cells:
        name = notebook.place_of(path, cell.number)
        _show_lines(name, cell.source)
        _execute(cell.code, name, module)


class _Shell:
    """Minimal ``get_ipython()`` object for notebooks that register magics."""

    def __init__(self, path: str, module: ModuleType) -> None:
        self._path = path
        self.user_ns = module.__dict__
        self._module = module

    def register_magic_function(self, *_: Any, **__: Any) -> None:
        """Do nothing: cells call the function directly."""

    def run_cell(self, text: str) -> None:
        """Run text as one of the notebook's cells."""
        cell = notebook.translate(Path(self._path).name, 0, text, {})
        for left in cell.left_out:
            logger.info("run_cell: left out %s", left)
        _execute(cell.code, f"{self._path}, run_cell", self._module)


def run_module(name: str, argv: Sequence[str]) -> None:
    """Run the module ``name`` as ``python -m`` does from the current folder."""
    sys.path[0] = str(Path.cwd())
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = importlib.util.find_spec(f"{name}.__main__")
    code = spec.loader.get_code(spec.name) if spec and spec.loader else None  # type: ignore[attr-defined] # of source
    if spec is None or code is None:
        raise NotFoundError(f"expected a module {name} in {Path.cwd()}, found none")
    module = _become_main(
        [spec.origin or argv[0], *argv[1:]],
        __file__=spec.origin,
        __cached__=spec.cached,
        __loader__=spec.loader,
        __package__=spec.parent,
        __spec__=spec,
    )
    exec(code, module.__dict__)  # noqa: S102 - runs the user's program


def _run_function(spec: TrainSpec, argv: Sequence[str], keywords: Mapping[str, Any]) -> Any:
    sys.argv = list(argv)
    sys.path[:] = [*spec.import_path, *(p for p in sys.path if p not in spec.import_path)]
    if spec.source is not None and not Path(spec.script).exists():
        _show_lines(spec.script, Path(spec.source).read_text())
    if spec.pickled is not None:
        with Path(spec.pickled).open("rb") as file:
            function, given = pickle.load(file)  # noqa: S301 - the user's own, as their script is
    else:
        module, _, name = (spec.target or "").partition(":")
        function, given = importlib.import_module(module), spec.keywords
        for part in name.split("."):
            function = getattr(function, part)
    return function(**given, **keywords)


def _become_main(argv: Sequence[str], **names: Any) -> ModuleType:
    sys.argv = list(argv)
    module = ModuleType("__main__")
    module.__dict__.update(__builtins__=builtins, **names)
    sys.modules["__main__"] = module
    return module


def _execute(source: bytes | str, name: str, module: ModuleType) -> None:
    # Do not apply this file's __future__ imports to the user's code.
    code = compile(source, name, "exec", dont_inherit=True)
    exec(code, module.__dict__)  # noqa: S102 - runs the user's program


def _show_lines(name: str, text: str) -> None:
    """Provide the source of ``name`` to tracebacks and other readers of linecache."""
    # Without a modification time linecache does not look for a file of that name.
    linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name

"""Locate and inspect training programs without running them."""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, ModuleSpec, SourceFileLoader
from pathlib import Path
from typing import Any, Literal

from timonel.errors import NotFoundError, SpecError
from timonel.training import functions, notebook
from timonel.training.spec import KERAS_BACKEND, EntryKind, require_tensorflow_backend

LEGACY_KERAS = "TF_USE_LEGACY_KERAS"

KerasFlavour = Literal["keras", "tf_keras"]
_FLAVOURS: Mapping[str, KerasFlavour] = {
    "1": "tf_keras", "true": "tf_keras", "0": "keras", "false": "keras",
}  # fmt: skip
Entry = str | os.PathLike[str] | Callable[..., Any]

_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*\Z")
_IS_A_FILE = (".py", ".ipynb")
_IS_YAML = (".yaml", ".yml")

_IMPORTED = frozenset({"tensorflow", "keras", "tf_keras"})
_SETTERS = ("environ.setdefault", "environ.update", "putenv", "load_dotenv")
_LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"


@dataclass(frozen=True)
class Program:
    """A user's training program."""

    kind: EntryKind
    file: str  # a function's file need not exist
    name: str  # to be displayed
    source: bytes  # the text, which is recorded; empty if unavailable
    keras: KerasFlavour
    sets_environment: bool = False  # before it imports TensorFlow
    function: Callable[..., Any] | None = None

    @property
    def folder(self) -> Path:
        """The folder whose git state is recorded."""
        parent = Path(self.file).parent
        return parent if parent.is_dir() else Path.cwd()

    @property
    def working_dir(self) -> Path:
        """Working directory of the tasks: a notebook's folder, otherwise the current one."""
        return Path(self.file).parent if self.kind == "notebook" else Path.cwd()

    @property
    def is_in_source(self) -> bool:
        """Whether the file is in the working directory, and so in the source of a job."""
        return self.kind != "function" and Path(self.file).is_relative_to(self.working_dir)

    @property
    def source_name(self) -> str:
        """File name of the recorded source."""
        name = Path(self.file).name
        return name if self.kind != "function" or name.endswith(".py") else f"{self.name}.py"


def find_program(entry: Entry, environ: Mapping[str, str]) -> Program:
    """Find the program that a file's path, a module's name or a function names."""
    require_tensorflow_backend(environ.get(KERAS_BACKEND))
    if callable(entry):
        return _function(entry, environ)
    path = Path(entry).expanduser().absolute()
    if path.is_file():
        if path.suffix in _IS_YAML:
            raise SpecError(
                f"{path.name} is no Python program",
                hint=f"run a job of Kubeflow with 'timonel train -f {os.fspath(entry)}'",
            )
        return _notebook(path, environ) if path.suffix == ".ipynb" else _script(path, environ)
    name = os.fspath(entry)
    if _is_module_name(name):
        found = _find_module(name)
        if found is not None:
            return _module(name, found, environ)
    if path.is_dir():
        raise SpecError(
            f"{path} is a folder, not a Python script",
            hint="a package needs a __main__.py to be run by its name",
        )
    also = f" and no module {name}" if _is_module_name(name) else ""
    raise NotFoundError(
        f"no script at {path}{also}",
        hint="give a Python file, a notebook, or a module's name as in 'python -m'; "
        "'timonel init image' and 'timonel init table' write scripts to start from",
    )


def _is_module_name(name: str) -> bool:
    return bool(_MODULE.match(name)) and not name.endswith(_IS_A_FILE)


def _script(path: Path, environ: Mapping[str, str]) -> Program:
    source = path.read_bytes()
    return Program("script", str(path), path.name, source, *_read(source, environ, path.parent))


def _notebook(path: Path, environ: Mapping[str, str]) -> Program:
    cells = notebook.read_cells(path)
    if not cells:
        raise SpecError(f"no cell of {path.name} has code")
    text = "\n".join(cell.code for cell in cells)
    source = notebook.without_outputs(path)
    return Program("notebook", str(path), path.name, source, *_read(text, environ, path.parent))


def _module(name: str, spec: ModuleSpec, environ: Mapping[str, str]) -> Program:
    file = spec.origin
    if not isinstance(spec.loader, SourceFileLoader) or file is None:
        raise SpecError(f"the module {name} has no Python source")
    source = Path(file).read_bytes()
    return Program("module", file, name, source, *_read(source, environ, Path.cwd()))


def _function(function: Callable[..., Any], environ: Mapping[str, str]) -> Program:
    file, text = functions.source_of(function)
    keras = _flavour(_parsed(text), environ)
    if functions.uses_legacy_keras(function):
        keras = "tf_keras"
    name = functions.described(function)
    return Program("function", file, name, text.encode(), keras, function=function)


def _find_module(name: str) -> ModuleSpec | None:
    """Find the module for ``python -m name``, without importing any parent."""
    spec = _resolved(name)
    if spec is None or spec.submodule_search_locations is None:
        return spec
    inner = _resolved(f"{name}.__main__")
    if inner is None and spec.origin is None:
        return None  # a folder with neither __init__ nor __main__
    if inner is None:
        raise SpecError(
            f"the package {name} has no __main__ module",
            hint="name one of its modules, as in package.train",
        )
    return inner


def _resolved(name: str) -> ModuleSpec | None:
    places: list[str] | None = [str(Path.cwd()), *sys.path]
    spec: ModuleSpec | None = None
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        if places is None:
            return None  # the parent is not a package
        spec = _spec(".".join(parts[:count]), places)
        if spec is None and count == 1:
            # Python's own import finders, and those of editable installs.
            found = (finder.find_spec(parts[0], None) for finder in sys.meta_path)
            spec = next((each for each in found if each is not None), None)
        if spec is None:
            return None
        inside = spec.submodule_search_locations
        places = list(inside) if inside is not None else None
    return spec


def _spec(name: str, places: list[str]) -> ModuleSpec | None:
    """Search folders only; Python itself would import the parents of namespace packages."""
    portions: list[str] = []
    for place in places:
        finder = FileFinder(place or ".", (SourceFileLoader, SOURCE_SUFFIXES))
        found = finder.find_spec(name)
        if found is not None and found.loader is not None:
            return found
        if found is not None:
            portions += found.submodule_search_locations or ()
    if not portions:
        return None
    spec = ModuleSpec(name, None, is_package=True)
    spec.submodule_search_locations = portions
    return spec


def _read(
    source: bytes | str, environ: Mapping[str, str], folder: Path
) -> tuple[KerasFlavour, bool]:
    """Return the Keras of a program, and whether it sets the environment before its imports."""
    nodes = _parsed(source)
    return _flavour(nodes, environ), _sets_environment(nodes, folder, set())


def _parsed(source: bytes | str) -> list[ast.AST]:
    try:
        return list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError):
        return []  # the task shows the error as Python does


def _flavour(nodes: Sequence[ast.AST], environ: Mapping[str, str]) -> KerasFlavour:
    asked = environ.get(LEGACY_KERAS, "").lower()
    if asked in _FLAVOURS:
        return _FLAVOURS[asked]
    return "tf_keras" if any(map(_names_legacy_keras, nodes)) else "keras"


def _names_legacy_keras(node: ast.AST) -> bool:
    if isinstance(node, ast.Import):
        return any(alias.name.partition(".")[0] == "tf_keras" for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        return (node.module or "").partition(".")[0] == "tf_keras"
    return isinstance(node, ast.Constant) and node.value == LEGACY_KERAS


def _sets_environment(nodes: Sequence[ast.AST], folder: Path, seen: set[Path]) -> bool:
    """Return whether a program changes environment variables before it imports TensorFlow."""
    # Modules of its folder that it imports before count too, unless ``seen``, to which they are
    # added. ``TF_CPP_MIN_LOG_LEVEL`` alone does not: jobs are quiet anyway.
    lines = {node: getattr(node, "lineno", sys.maxsize) for node in nodes}
    end = min((line for node, line in lines.items() if _imports_tensorflow(node)), default=None)
    before = [node for node, line in lines.items() if end is None or line < end]
    if any(map(_changes_environment, before)):
        return True
    found = {file for node in before for file in _files(node, folder)} - seen
    seen |= found
    return any(_sets_environment(_parsed(file.read_bytes()), folder, seen) for file in found)


def _imports_tensorflow(node: ast.AST) -> bool:
    return any(name.partition(".")[0] in _IMPORTED for name in _imports(node))


def _imports(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [each.name for each in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [node.module, *(f"{node.module}.{each.name}" for each in node.names)]
    return []


def _files(node: ast.AST, folder: Path) -> Iterator[Path]:
    """Yield the files of a folder's modules that a statement runs."""
    for name in _imports(node):
        parts = name.split(".")
        for count in range(1, len(parts) + 1):
            module = folder.joinpath(*parts[:count])
            files = module.with_suffix(".py"), module / "__init__.py"
            yield from (file for file in files if file.is_file())


def _changes_environment(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        name = ast.unparse(node.func)
        first = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else None
        return name.endswith(_SETTERS) and first != _LOG_LEVEL
    if not isinstance(node, ast.Assign | ast.AugAssign):
        return False
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    changed = [
        each
        for each in targets
        if isinstance(each, ast.Subscript) and ast.unparse(each.value).endswith("environ")
    ]
    return any(
        not (isinstance(each.slice, ast.Constant) and each.slice.value == _LOG_LEVEL)
        for each in changed
    )

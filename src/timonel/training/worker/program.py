r"""Run the user's script, notebook, module or function as Python itself would.

Scripts, notebooks and modules run as ``__main__``, which they stay afterwards: the export of the
model still needs their layers and functions.

Arguments may contain placeholders, as scripts written for TensorFlow 1 take their cluster as flags:

    timonel train old.py --strategy none --workers 2 --ps 1 -- \
        --ps_hosts {ps_hosts} --worker_hosts {worker_hosts} \
        --job_name {job_name} --task_index {task_index}

Such a script knows no chief: unless the arguments contain ``{chief_hosts}``, the chief is worker 0
and the workers count from 1.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import builtins
import contextlib
import importlib
import importlib.util
import inspect
import json
import linecache
import logging
import pickle
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from timonel.errors import NotFoundError
from timonel.tracking import RunWriter
from timonel.tracking.redaction import redact_params
from timonel.training import notebook
from timonel.training.spec import TrainSpec

logger = logging.getLogger(__name__)
_TRUE, _FALSE = frozenset({"true", "1", "yes"}), frozenset({"false", "0", "no"})

_PLACEHOLDERS = ("chief_hosts", "worker_hosts", "ps_hosts", "job_name", "task_index")
_PLACEHOLDER = re.compile(rf"\{{(\{{)?({'|'.join(_PLACEHOLDERS)})(?(1)\}})\}}")


def fill_placeholders(
    args: Sequence[str], tasks: Mapping[str, Sequence[str]], role: str, index: int
) -> list[str]:
    """Return the script's ``args`` with placeholders replaced by the cluster's values.

    ``{{job_name}}`` gives ``{job_name}``. Other braces, as of JSON, are left alone. ``role`` and
    ``index`` are those of the receiving task.
    """
    has_chief = any(
        name == "chief_hosts" and not escaped
        for word in args
        for escaped, name in _PLACEHOLDER.findall(word)
    )
    values = _values(tasks, role, index, has_chief=has_chief)

    def value(found: re.Match[str]) -> str:
        escaped, name = found.groups()
        return f"{{{name}}}" if escaped else values[name]

    return [_PLACEHOLDER.sub(value, word) for word in args]


def _values(
    tasks: Mapping[str, Sequence[str]], role: str, index: int, *, has_chief: bool
) -> dict[str, str]:
    chiefs, workers = list(tasks.get("chief", ())), list(tasks.get("worker", ()))
    if not has_chief:
        if role == "worker":
            index += len(chiefs)
        role = "worker" if role == "chief" else role
        workers = chiefs + workers
    return {
        "chief_hosts": ",".join(chiefs),
        "worker_hosts": ",".join(workers),
        "ps_hosts": ",".join(tasks.get("ps", ())),
        "job_name": role,
        "task_index": str(index),
    }


@contextlib.contextmanager
def recording_parameters(
    record: Callable[[Mapping[str, Any]], None],
    known: Collection[str] = (),
    warn: Callable[[str], None] = lambda _: None,
) -> Iterator[None]:
    """Record how ``argparse`` parses the command line within this block.

    ``record`` takes the parameters by the names of their attributes, without secrets. ``known`` are
    already recorded, spelled like flags; ``warn`` is told of those that every parser left unread.
    """
    original = argparse.ArgumentParser.parse_known_args
    left_out = {name.replace("-", "_") for name in known}
    unread: set[str] | None = None

    def parse_known_args(self: Any, args: Any = None, namespace: Any = None) -> Any:
        nonlocal unread
        # A subparser, or a parser of other arguments, does not parse the script's command line.
        is_own = args is None or list(args) == sys.argv[1:]
        parsed, rest = original(self, _with_switches(self, known) if is_own else args, namespace)
        if is_own:
            found = {
                name: value
                for name, value in vars(parsed).items()
                if name not in left_out and value is not None and not callable(value)
            }
            # Redact before lists and mappings become text, which hides the names of secrets.
            record({name: _as_parameter(value) for name, value in redact_params(found).items()})
            flags = {each.partition("=")[0] for each in rest}
            ignored = {name for name in known if f"--{name}" in flags}
            unread = ignored if unread is None else unread & ignored
        return parsed, rest

    patched: Any = argparse.ArgumentParser
    patched.parse_known_args = parse_known_args
    try:
        yield
    finally:
        patched.parse_known_args = original
        # ``parse_args`` refuses them itself.
        for name in sorted(unread or ()):
            warn(
                f"the script's argument parser does not know --{name}, so it may have no effect; "
                "check how the script spells it"
            )


def _with_switches(parser: argparse.ArgumentParser, params: Collection[str]) -> list[str]:
    """Return the command line with parameters for switches as these are given: alone, or not."""
    switches = {
        option: action
        for action in parser._actions
        if action.nargs == 0
        for option in action.option_strings
    }
    words = []
    for word in sys.argv[1:]:
        option, equals, value = word.partition("=")
        value = value.lower()
        if not equals or option.removeprefix("--") not in params or option not in switches:
            words.append(word)
        elif value in _TRUE:
            words.append(option)
        elif value not in _FALSE:
            words.append(word)  # argparse says what is wrong
        elif isinstance(switches[option], argparse.BooleanOptionalAction):
            words.append(f"--no-{option.removeprefix('--')}")
    return words


def _as_parameter(value: Any) -> bool | int | float | str:
    return value if isinstance(value, bool | int | float | str) else str(value)


def record_result(run: RunWriter, value: Any) -> None:
    """Record a function's return value, or log that JSON cannot represent it."""
    try:
        plain = json.loads(json.dumps(value, default=_as_json))
    except (TypeError, ValueError, RecursionError):
        logger.info("The function's result is not recorded: JSON cannot represent %s.", type(value))
        return
    run.event("result", value=plain)


def _as_json(value: Any) -> Any:
    if callable(getattr(value, "numpy", None)):
        value = value.numpy()
    if callable(getattr(value, "tolist", None)):
        return value.tolist()
    raise TypeError(type(value).__name__)


def run_program(spec: TrainSpec, argv: Sequence[str], keywords: Mapping[str, Any]) -> Any:
    """Run a job's program; return a function's return value, given further keywords."""
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
    try:
        source = path.read_bytes()
    except FileNotFoundError:
        raise NotFoundError(
            f"No script {path} in the image or on the machine of the task"
        ) from None
    sys.path[0] = str(path.parent)
    module = _become_main(argv, __file__=str(path), __cached__=None, __loader__=None)
    _execute(source, str(path), module)


def run_notebook(argv: Sequence[str]) -> None:
    """Run the notebook ``argv[0]`` cell by cell, like a fresh kernel."""
    path = argv[0]
    cells = notebook.read_cells(Path(path))
    for cell in cells:
        for text in cell.left_out:
            logger.info("Cell %d: skipped %s", cell.number, text)
    sys.path[0] = str(Path(path).parent)
    module = _become_main(argv, __file__=path, __loader__=None, display=print)
    # A notebook without magics of its own should see that it runs in no kernel.
    shell = _Shell(path, module) if any("register_" in cell.source for cell in cells) else None
    module.__dict__["get_ipython"] = lambda: shell
    with asyncio.Runner() as runner:
        for cell in cells:
            name = notebook.place_of(path, cell.number)
            _show_lines(name, cell.source)
            _execute_cell(cell.code, name, module, runner)


class _Shell:
    """Minimal ``get_ipython()`` object for notebooks that register magics."""

    def __init__(self, path: str, module: ModuleType) -> None:
        self._path = path
        self.user_ns = module.__dict__
        self._module = module

    def register_magic_function(self, *_: Any, **__: Any) -> None:
        """Do nothing: cells call the function directly."""

    def run_cell(self, text: str) -> None:
        cell = notebook.translate(Path(self._path).name, 0, text, {})
        for left in cell.left_out:
            logger.info("run_cell: skipped %s", left)
        _execute(cell.code, f"{self._path}, run_cell", self._module)


def run_module(name: str, argv: Sequence[str]) -> None:
    """Run the module ``name`` as ``python -m`` does from the current folder."""
    sys.path[0] = str(Path.cwd())
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = importlib.util.find_spec(f"{name}.__main__")
    code = spec.loader.get_code(spec.name) if spec and spec.loader else None  # type: ignore[attr-defined] # of source
    if spec is None or code is None:
        raise NotFoundError(f"No module {name} in {Path.cwd()}")
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


def _execute_cell(text: str, name: str, module: ModuleType, runner: asyncio.Runner) -> None:
    """Run a cell as IPython does: with ``await``, and its last expression as ``_``."""
    tree = ast.parse(text, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None

    def run(part: ast.Module | ast.Expression, kind: str) -> Any:
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        code = compile(part, name, kind, flags=flags, dont_inherit=True)
        value = eval(code, module.__dict__)  # noqa: S307 - runs the user's program
        is_awaiting = code.co_flags & inspect.CO_COROUTINE
        return runner.run(value) if is_awaiting else value

    run(tree, "exec")
    if isinstance(last, ast.Expr):
        value = run(ast.Expression(last.value), "eval")
        if value is not None:
            module.__dict__["_"] = value


def _show_lines(name: str, text: str) -> None:
    """Provide the source of ``name`` to tracebacks and other readers of linecache."""
    # Without a modification time linecache does not look for a file of that name.
    linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name

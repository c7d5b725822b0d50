"""Translate notebook cells to Python, line for line. Pure except for reading the file.

A cell that is valid Python stays unchanged. In other cells, IPython syntax is translated where it
has an effect (``%env A={b}``, ``%cd``, ``%time``), dropped where a job has no use for it
(``%matplotlib``, ``%pip``, ``!ls``, help), and rejected where later code needs its value
(``files = !ls``, ``%%capture out``). Magics that the notebook registers itself are called as Python
functions. nbconvert and IPython keep shell commands, which would run once in every worker.
"""

from __future__ import annotations

import ast
import io
import json
import re
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from timonel.errors import SpecError

_FORMAT = 4
_INDENT = re.compile(r"\s*")
_ASSIGNED = re.compile(r"[\w.,\s\[\]*]+=\s*([!%].*)")
_HELP = re.compile(r"\?{1,2}[\w.%*]+|[\w.%*]+\?{1,2}")
_CAPTURES = re.compile(r"%%capture\s+(?:--\S+\s+)*(?P<name>[A-Za-z_]\w*)")
_DOLLAR = re.compile(r"\$([A-Za-z_]\w*)")
_MARKS = frozenset({"%", "!", "?"})
_RUNS_ITS_LINE = frozenset({"time", "prun"})
_RUNS_ITS_CELL = frozenset({"time", "capture", "prun"})
_SETTINGS = frozenset(
    {
        "autoreload",
        "colors",
        "config",
        "load_ext",
        "matplotlib",
        "pprint",
        "precision",
        "reload_ext",
    }
)

_REGISTERS = frozenset({"register_cell_magic", "register_line_cell_magic", "register_line_magic"})


@dataclass(frozen=True)
class Cell:
    """A code cell."""

    number: int  # among the code cells, from 1, as a fresh kernel counts them
    source: str
    code: str  # the source as Python, with the same line numbers
    left_out: tuple[str, ...] = ()  # original lines that a job does not run


def read_cells(path: Path) -> list[Cell]:
    """Return the code cells of the notebook at ``path``."""
    cells, magics = [], dict[str, str]()
    sources = list(_sources(_read(path), path.name))
    for number, source in enumerate(sources, start=1):
        _refuse_captured(path.name, number, source, sources[number:])
        cells.append(translate(path.name, number, source, magics))
        magics.update(_registered(cells[-1].code))
    return cells


def translate(name: str, number: int, source: str, magics: Mapping[str, str]) -> Cell:
    """Translate a cell to Python; ``magics`` are functions that earlier cells registered."""
    if _is_python(source):
        return Cell(number, source, source)
    lines = source.split("\n")
    first = next(n for n, line in enumerate(lines) if line.strip())
    if lines[first].lstrip().startswith("%%"):
        magic, _, rest = lines[first].strip().removeprefix("%%").partition(" ")
        if magic in magics:
            body = "\n".join(lines[first + 1 :])
            return Cell(number, source, f"{magics[magic]}({rest.strip()!r}, {body!r})")
        if magic not in _RUNS_ITS_CELL:
            return Cell(number, source, "", (f"%%{magic} and what follows it",))
        lines[first] = ""
    left_out = []
    for place in _statements(lines):
        line = _joined(lines, place)
        _refuse_values(name, number, line)
        lines[place], is_missed = _as_python(line, magics)
        if is_missed:
            left_out.append(line.strip())
    return Cell(number, source, "\n".join(lines), tuple(left_out))


def without_outputs(path: Path) -> bytes:
    """Return the notebook without outputs; the same code always gives the same bytes."""
    content = _read(path)
    for cell in content["cells"]:
        if cell.get("cell_type") == "code":
            cell.update(outputs=[], execution_count=None)
    return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()


def place_of(path: str, number: int) -> str:
    """Return the file name shown in tracebacks for a cell's lines."""
    return f"{path}, cell {number}"


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
        version = int(content["nbformat"])
        language = _language(content) if version >= _FORMAT else "python"
        has_cells = version < _FORMAT or isinstance(content["cells"], list)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _no_notebook(path, error) from None
    if not has_cells:
        raise _no_notebook(path, ValueError("its cells are not a list"))
    if version < _FORMAT:
        raise SpecError(
            f"{path.name} has notebook format {version}, which is older than {_FORMAT}",
            hint="open and save it with a newer Jupyter",
        )
    if language != "python":
        raise SpecError(f"{path.name} is a notebook in {language}, not in Python")
    return dict(content)


def _no_notebook(path: Path, error: Exception) -> SpecError:
    reason = f"no {error}" if isinstance(error, KeyError) else str(error)
    return SpecError(
        f"{path.name} is not a notebook ({reason})",
        hint="a notebook is JSON with cells, as Jupyter saves it",
    )


def _language(content: Mapping[str, Any]) -> str:
    about = content.get("metadata", {})
    named = about.get("kernelspec", {}).get("language") or about.get("language_info", {}).get(
        "name"
    )
    return str(named or "python").lower()


def _sources(content: Mapping[str, Any], name: str) -> Iterator[str]:
    """Yield the texts of the cells that a kernel would run."""
    for cell in content["cells"]:
        try:
            kind, lines = cell["cell_type"], cell["source"]
            text = lines if isinstance(lines, str) else "".join(lines)
        except (KeyError, TypeError):
            raise SpecError(
                f"a cell of {name} has no type or no source", hint="open and save it with Jupyter"
            ) from None
        if kind == "code" and text.strip():
            yield text


def _is_python(text: str) -> bool:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError):
        return False
    return True


def _statements(lines: Sequence[str]) -> Iterator[int]:
    """Yield the indices of lines that begin a statement."""
    # A line inside brackets or a multi-line string may begin with ``%`` or ``!`` and still be
    # Python.
    pending: list[str] = []
    is_continued = False
    for number, line in enumerate(list(lines)):
        if is_continued:
            is_continued = line.endswith("\\")
            continue
        if not pending:
            yield number
            if line.lstrip()[:1] in _MARKS:
                is_continued = line.endswith("\\")
                continue
        pending.append(line)
        if not _is_open("\n".join(pending)):
            pending.clear()


def _joined(lines: list[str], place: int) -> str:
    """Return a line with those that continue a magic or shell command, which become empty."""
    line = lines[place]
    while line.lstrip()[:1] in _MARKS and line.endswith("\\") and place + 1 < len(lines):
        place += 1
        line = line[:-1].rstrip() + " " + lines[place].lstrip()
        lines[place] = ""
    return line


def _is_open(text: str) -> bool:
    """Tell whether a statement continues on the next line."""
    try:
        list(tokenize.generate_tokens(io.StringIO(text).readline))
    except tokenize.TokenError as error:
        return "multi-line" in str(error) or "triple-quoted" in str(error)
    except SyntaxError:
        return False
    return text.endswith("\\")


def _refuse_values(name: str, number: int, line: str) -> None:
    assigned = _ASSIGNED.fullmatch(line.strip())
    if assigned and not _is_python(line.strip()):
        raise SpecError(
            f"cell {number} of {name} assigns the result of a magic or shell command: "
            f"{line.strip()!r}",
            hint=f"a job cannot run {assigned.group(1)!r}: use Python's pathlib or subprocess",
        )


def _refuse_captured(name: str, number: int, source: str, later: Sequence[str]) -> None:
    found = _CAPTURES.match(source.lstrip())
    if found and any(re.search(rf"\b{found['name']}\b", text) for text in later):
        raise SpecError(
            f"cell {number} of {name} captures its output as {found['name']} for later cells",
            hint="a job's output is in its log: use contextlib.redirect_stdout",
        )


def _registered(code: str) -> Iterator[tuple[str, str]]:
    """Yield each magic that a cell registers with its function's name."""
    nodes = ast.parse(code).body if _is_python(code) else []
    for function in [node for node in nodes if isinstance(node, ast.FunctionDef)]:
        for mark in function.decorator_list:
            maker = mark.func if isinstance(mark, ast.Call) else mark
            if ast.unparse(maker).rpartition(".")[2] in _REGISTERS:
                called = mark.args[0] if isinstance(mark, ast.Call) and mark.args else None
                yield str(getattr(called, "value", function.name)), function.name


def _as_python(line: str, magics: Mapping[str, str]) -> tuple[str, bool]:
    """Return a line as Python, and whether something relevant was dropped."""
    indent = _INDENT.match(line).group()  # type: ignore[union-attr] # matches the empty text too
    text = line.strip()
    if text.startswith("%"):
        magic, _, rest = text.lstrip("%").partition(" ")
        code = _magic(magic, rest.strip(), magics)
        return indent + (code or "pass"), code is None and magic not in _SETTINGS
    if text.startswith("!"):
        return f"{indent}pass", True
    return (f"{indent}pass", False) if _HELP.fullmatch(text) else (line, False)


def _magic(magic: str, rest: str, magics: Mapping[str, str]) -> str | None:
    """Return a magic as Python; None for one without an effect."""
    if magic in magics:
        return f"{magics[magic]}({rest!r})"
    if magic in _RUNS_ITS_LINE and rest:
        return rest
    if magic in {"env", "set_env"} and rest:
        variable, _, value = rest.replace("=", " ", 1).partition(" ")
        place = f"__import__('os').environ[{variable!r}]"
        is_shown = not value and "=" not in rest
        return f"print({place})" if is_shown else f"{place} = {_expanded(value.strip())}"
    if magic == "cd":
        folder = _expanded(rest.strip("\"'") or "~")
        return f"__import__('os').chdir(__import__('os').path.expanduser({folder}))"
    return None


def _expanded(text: str) -> str:
    """Return an expression for a magic's argument, in which ``{x}`` and ``$x`` are values."""
    braced = _DOLLAR.sub(r"{\1}", text)
    expression = f"f{braced!r}"
    return expression if "{" in braced and _is_python(expression) else repr(text)

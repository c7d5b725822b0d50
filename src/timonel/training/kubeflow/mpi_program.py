"""Find MPI and Horovod in a program, which timonel does not provide to its tasks."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator
from pathlib import Path

from timonel.errors import SpecError
from timonel.training import notebook
from timonel.training.entries import Program

_RANKS = ("OMPI_COMM_WORLD_", "HOROVOD_RANK", "HOROVOD_SIZE", "PMI_RANK", "PMI_SIZE", "MPI_LOCAL")
"""Beginnings of variables with a process's rank, or the number of processes."""
_CURES = {
    "horovod": "remove it: plain Keras is distributed without hvd.init, optimizers and callbacks",
    "mpi4py": "remove it; or on one machine without -f: timonel train SCRIPT --launcher mpi",
}


def check_program(program: Program) -> None:
    """Check that a program does not use MPI itself: each task would train alone, without an error.

    Only the program's own file is read.
    """
    if program.kind == "notebook":
        text = "\n".join(cell.code for cell in notebook.read_cells(Path(program.file)))
    else:
        text = program.source.decode(errors="replace")
    for line, found, cure in uses_of_mpi(text):
        raise SpecError(
            f"{program.name} uses {found} (line {line}), and each task would train alone", hint=cure
        )


def uses_of_mpi(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield line, name and cure of each use of MPI in a program's text."""
    try:
        tree = ast.parse(textwrap.dedent(text))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return  # the task reports it
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module or ""]
        elif isinstance(node, ast.Constant) and str(node.value).startswith(_RANKS):
            yield node.lineno, str(node.value), "use timonel.training.context().cluster.rank"
            continue
        else:
            continue
        for package in (name.partition(".")[0] for name in names):
            if package in _CURES:
                yield node.lineno, package, _CURES[package]

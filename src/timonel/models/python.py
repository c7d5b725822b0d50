"""Recognize and check Python models, without running their code."""

from __future__ import annotations

import ast
from pathlib import Path

from timonel.errors import ModelError

MODEL_FILE = "model.py"
CLASS = "PythonModel"


def is_python_model(folder: Path) -> bool:
    """Return whether ``folder`` holds a Python model, and no SavedModel."""
    if any((folder / name).is_file() for name in ("saved_model.pb", "saved_model.pbtxt")):
        return False
    return (folder / MODEL_FILE).is_file()


def check_python_model(folder: Path) -> None:
    """Check a Python model as far as possible without running it.

    Raises:
        ModelError: The file is not valid Python, or defines no class of the expected name.
    """
    file = folder / MODEL_FILE
    try:
        module = ast.parse(file.read_bytes(), str(file))
    except (SyntaxError, ValueError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
        raise ModelError(f"expected Python in {file}{line}, got {error}") from error
    names = {CLASS: False}
    for node in ast.walk(module):
        if isinstance(node, ast.ClassDef):
            names[node.name] = True
        elif isinstance(node, ast.alias):
            names[node.asname or node.name] = True
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names[node.id] = True
    if not names[CLASS]:
        raise ModelError(
            f"expected a class {CLASS} in {file}, found none",
            hint="it declares inputs and outputs, and has the methods load and predict",
        )

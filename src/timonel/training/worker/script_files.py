"""Tell the files of the user's program from those of Python, its libraries and timonel."""

from __future__ import annotations

import sys
import sysconfig
import traceback
from pathlib import Path
from types import FrameType

_LIBRARIES = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platlib"))
_INSTALLED = ("/site-packages/", "/dist-packages/")  # also a user's own, or another environment's
_OURS = str(Path(__file__).parents[2])
_GENERATED = "__autograph_generated_file"


def is_of_script(file: str | None) -> bool:
    """Return whether code of a file, None if built in, is of the script or modules beside it."""
    if file is None or file.startswith("<") or _GENERATED in file:
        return False
    is_installed = any(folder in file for folder in _INSTALLED)
    return not is_installed and not file.startswith((*_LIBRARIES, _OURS))


def is_class_of_script(kind: type) -> bool:
    """Return whether a class is of the script, or of a module that is not installed."""
    module = sys.modules.get(kind.__module__)
    return kind.__module__ == "__main__" or is_of_script(getattr(module, "__file__", None))


def line_of_script(frame: FrameType) -> tuple[FrameType, str, int] | None:
    """Return the innermost frame of the script, from this one on, with its file and line."""
    for each, line in traceback.walk_stack(frame):
        if is_of_script(name := each.f_code.co_filename):
            return each, name.rpartition("/")[2], line
    return None

"""Running the user's script as Python itself would: as ``__main__``, from its own folder."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType


def run_script(argv: Sequence[str]) -> None:
    """Run ``argv[0]`` with ``argv`` as ``sys.argv``.

    The module stays ``__main__`` afterwards: what the script defined (layers, functions) is still
    needed when its model is exported.

    Raises:
        BaseException: Whatever the script raises, as it is.
    """
    path = Path(argv[0])
    source = path.read_bytes()
    sys.argv = list(argv)
    sys.path[0] = str(path.parent)
    module = ModuleType("__main__")
    module.__dict__.update(
        __file__=str(path), __builtins__=builtins, __cached__=None, __loader__=None
    )
    sys.modules["__main__"] = module
    exec(compile(source, str(path), "exec"), module.__dict__)  # noqa: S102 - it is what we are for

"""The readers of arrays of numbers that run here: what holds for one has to hold for each."""

from __future__ import annotations

import shutil
import sysconfig
from pathlib import Path

from timonel.serving.protocols.tfs_rest import number_arrays

_COMPILER = shutil.which("cc") or shutil.which("gcc")
_CAN_BE_BUILT = _COMPILER and (Path(sysconfig.get_path("include")) / "Python.h").exists()

NATIVE, SIMDJSON = "native", "simdjson"
# Where the compiled one could have been built and was not, its tests fail.
READERS = [
    *([NATIVE] if number_arrays.NATIVE is not None or _CAN_BE_BUILT else []),
    *([SIMDJSON] if number_arrays.PARSER is not None else []),
]

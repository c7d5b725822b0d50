"""Whether the compiled reader of arrays of numbers can run here."""

from __future__ import annotations

import shutil
import sysconfig
from pathlib import Path

from timonel.serving.codec import number_arrays

_COMPILER = shutil.which("cc") or shutil.which("gcc")
CAN_BE_BUILT = _COMPILER and (Path(sysconfig.get_path("include")) / "Python.h").exists()
# Where it could have been built and was not, its tests fail.
IS_MISSING = number_arrays.NATIVE is None and not CAN_BE_BUILT

"""Write the list of operations that safe loading takes for harmless, of the TensorFlow installed.

Look at what a new release brings before this is committed: `git diff` shows it.
"""

from __future__ import annotations

from pathlib import Path

from timonel.models import safety
from timonel.models.safety.operations import harmless_of
from timonel.serving.runtimes import _private

HEAD = "# Made of TensorFlow's registry by scripts/list_operations.py; see operations.py.\n"

target = Path(safety.__path__[0], "harmless.txt")
target.write_text(
    HEAD + "".join(f"{name}\n" for name in harmless_of(_private.registered_operations()))
)

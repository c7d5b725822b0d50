"""Import every module of timonel and print a line for each that fails.

The requirements of an installation are too low, or one is missing, where an import fails.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
from types import ModuleType

import timonel

EXCLUDED = {
    "timonel.data.runners.beam_worker": "needs Apache Beam, which make test-beam installs",
    "timonel.training.quantize_aware.__main__": "runs when it is imported",
}


def import_all(package: ModuleType, excluded: frozenset[str]) -> tuple[int, list[str]]:
    """Import all modules below a package.

    Returns:
        The number of modules imported, and ``MODULE: ERROR`` for each that failed.
    """
    imported, failures = 0, []
    # A package that cannot be imported is reported below, like any other module.
    walk = pkgutil.walk_packages(package.__path__, f"{package.__name__}.", onerror=lambda _: None)
    for name in (each.name for each in walk if each.name not in excluded):
        try:
            importlib.import_module(name)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - all failures are reported
            failures.append(f"{name}: {type(error).__name__}: {' '.join(str(error).split())}")
        else:
            imported += 1
    return imported, failures


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    imported, failures = import_all(timonel, frozenset(EXCLUDED))
    for failure in failures:
        print(failure)
    print(f"{imported} modules of timonel imported, {len(failures)} failed")
    sys.exit(1 if failures else 0)

"""Contract suites and fakes for plug-in authors; needs the development packages.

Everything is imported on first use: programs used by the suites run from this package without
pytest.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "EngineContract": "timonel.testing.engines",
    "EngineHarness": "timonel.testing.engines",
    "ServiceEngineContract": "timonel.testing.services",
    "ServiceHarness": "timonel.testing.services",
}

__all__ = ["EngineContract", "EngineHarness", "ServiceEngineContract", "ServiceHarness"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)

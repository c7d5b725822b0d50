"""Contract suites and fakes for plug-in authors; needs the development packages.

Everything is imported on first use: programs used by the suites run from this package without
pytest.
"""

from __future__ import annotations

from timonel.lazy import lazy_names

__all__ = [
    "DocumentStoreContract",
    "EngineContract",
    "EngineHarness",
    "ServiceEngineContract",
    "ServiceHarness",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "documents": ("DocumentStoreContract",),
        "engines": ("EngineContract", "EngineHarness"),
        "services": ("ServiceEngineContract", "ServiceHarness"),
    },
)

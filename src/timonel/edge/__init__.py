"""Convert models for phones, microcontrollers and browsers.

Public names are imported on first use: the command line needs the options only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from timonel.edge.launch import Conversion, convert_version

__all__ = ["Conversion", "convert_version"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from timonel.edge import launch  # noqa: PLC0415 - see above

    return getattr(launch, name)

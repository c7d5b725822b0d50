"""Convert models for phones, microcontrollers and browsers.

Public names are imported on first use: the command line needs the options only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from timonel.lazy import lazy_names

if TYPE_CHECKING:
    from timonel.edge.launch import Conversion, convert_version

__all__ = ["Conversion", "convert_version"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "launch": ("Conversion", "convert_version"),
    },
)

"""Convert raw files to sharded records and load them as batches.

``load`` and ``preprocess`` need TensorFlow, which is imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from timonel.data.conversion import convert
from timonel.data.dataset import Dataset
from timonel.data.manifest import Manifest
from timonel.data.preprocessing import (
    ImagePreprocessing,
    Preprocessing,
    TablePreprocessing,
    parse_preprocessing,
)
from timonel.data.summary import DatasetSummary, summarise

if TYPE_CHECKING:
    from timonel.data.loader import load

__all__ = [
    "Dataset",
    "DatasetSummary",
    "ImagePreprocessing",
    "Manifest",
    "Preprocessing",
    "TablePreprocessing",
    "convert",
    "load",
    "parse_preprocessing",
    "summarise",
]


def __getattr__(name: str) -> Any:
    if name == "load":
        from timonel.data.loader import load  # noqa: PLC0415 - imports TensorFlow

        return load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Convert raw files to sharded records, inspect them, and load them as batches.

``load`` and ``preprocess`` need TensorFlow, which is imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from timonel.data.dataset import Dataset
from timonel.data.manifest import Manifest
from timonel.data.preprocessing import (
    ImagePreprocessing,
    Preprocessing,
    TablePreprocessing,
    parse_preprocessing,
)
from timonel.data.summary import DatasetSummary, summarise
from timonel.lazy import lazy_names

if TYPE_CHECKING:
    from timonel.data.conversion import convert
    from timonel.data.given_schema import GivenSchema, schema_of
    from timonel.data.inspection import (
        Comparison,
        DatasetReport,
        Inspection,
        Profile,
        Record,
        Verification,
        diff,
        inspect,
        report,
        stats,
        verify,
    )
    from timonel.data.loader import load

__all__ = [
    "Comparison",
    "Dataset",
    "DatasetReport",
    "DatasetSummary",
    "GivenSchema",
    "ImagePreprocessing",
    "Inspection",
    "Manifest",
    "Preprocessing",
    "Profile",
    "Record",
    "TablePreprocessing",
    "Verification",
    "convert",
    "diff",
    "inspect",
    "load",
    "parse_preprocessing",
    "report",
    "schema_of",
    "stats",
    "summarise",
    "verify",
]


__getattr__, __dir__ = lazy_names(
    __name__,
    {
        # It imports Arrow, which starts a thread: processes that fork read datasets too.
        "conversion": ("convert",),
        "given_schema": ("GivenSchema", "schema_of"),
        "inspection": (
            "Comparison",
            "Inspection",
            "Profile",
            "Record",
            "DatasetReport",
            "Verification",
            "diff",
            "inspect",
            "report",
            "stats",
            "verify",
        ),
        "loader": ("load",),
    },
)

"""Export live models, check and publish versions, and inspect them.

``export_live`` needs TensorFlow, which is imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from timonel.lazy import lazy_names
from timonel.models.inspection import signatures_of
from timonel.models.schema import CheckResult, Export, StoredSignature, TensorInfo
from timonel.models.versions import ModelVersion

if TYPE_CHECKING:
    from timonel.models.publish import check_version, export
    from timonel.models.repository import ModelRepository, alias
    from timonel.models.savedmodel import export_live

__all__ = [
    "CheckResult",
    "Export",
    "ModelRepository",
    "ModelVersion",
    "StoredSignature",
    "TensorInfo",
    "alias",
    "check_version",
    "export",
    "export_live",
    "signatures_of",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "publish": ("check_version", "export"),
        "repository": ("ModelRepository", "alias"),
        "savedmodel": ("export_live",),
    },
)

"""Find an example input of a model through its provenance."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from timonel.errors import TimonelError

if TYPE_CHECKING:
    from timonel.models import ModelVersion
    from timonel.storage import Workspace


def held_out_image(version: ModelVersion, workspace: Workspace) -> str | None:
    """Return an image file not used to train the version, or None."""
    from timonel.data import Dataset
    from timonel.tracking import read_run

    if version.run_id is None:
        return None
    with contextlib.suppress(TimonelError, OSError):
        inputs = read_run(workspace, version.run_id).inputs
        for place in (item.uri for item in inputs if item.type == "dataset"):
            dataset = Dataset.open(place)
            if dataset.manifest.record_schema.type == "images" and dataset.count("test"):
                key = next(dataset.examples("test"))["key"]
                path = Path(dataset.manifest.source.uri, key)
                return shorter(path) if path.is_file() else None
    return None


def shorter(path: Path) -> str:
    """Return ``path`` relative to the current directory if it is below it."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)

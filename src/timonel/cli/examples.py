"""A real input of a model, found through its provenance, to show how the model is asked."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from timonel.errors import TimonelError

if TYPE_CHECKING:
    from timonel.data import Dataset
    from timonel.models import ModelVersion
    from timonel.storage import Workspace


def example_of(version: ModelVersion, workspace: Workspace) -> Any:
    """Return a held-out raw input of the data that ``version`` was trained on, None without one.

    An image is the path of a file, relative where that is shorter; a row is a mapping.
    """
    with contextlib.suppress(TimonelError, OSError, StopIteration):
        dataset = _dataset_of(version, workspace)
        if dataset is not None:
            return _first(dataset, version)
    return None


def _dataset_of(version: ModelVersion, workspace: Workspace) -> Dataset | None:
    from timonel.data import Dataset
    from timonel.tracking import read_run

    if version.run_id is None:
        return None
    run = read_run(workspace, version.run_id)
    places = [item.uri for item in run.inputs if item.type == "dataset"]
    return Dataset.open(places[0]) if places else None


def _first(dataset: Dataset, version: ModelVersion) -> Any:
    split = next(name for name in ("test", "validation", "train") if dataset.count(name))
    record = next(dataset.examples(split))
    if dataset.manifest.record_schema.type == "images":
        path = Path(dataset.manifest.source.uri, record["key"])
        return shorter(path) if path.is_file() else None
    named = {name.rpartition("/")[2]: value for name, value in record.items()}
    inputs = version.signatures["serving_default"].inputs
    return {name: _plain(named[name]) for name in inputs if name in named}


def shorter(path: Path) -> str:
    """Return ``path`` as it is or from the present folder, whichever is shorter."""
    return min(str(path), os.path.relpath(path), key=len)


def _plain(value: Any) -> Any:
    return value.decode(errors="replace") if isinstance(value, bytes) else value

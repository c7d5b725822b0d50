"""Example requests to running servers and endpoints."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from timonel.errors import TimonelError
from timonel.styles import from_here

if TYPE_CHECKING:
    from timonel.models import ModelVersion
    from timonel.serving import Server
    from timonel.storage import Workspace


def example_request(
    server: Server | str, model: str, workspace: Workspace, version: int | None = None
) -> str:
    """Return a ``curl`` command for a model, with an image or values not used for training.

    Args:
        server: A running server, or its REST address.
        model: The model's name.
        workspace: The workspace, where the model's training data is looked up.
        version: The version whose training data matters; by default the newest.
    """
    from timonel.models.repository import workspace_models
    from timonel.serving import curl_example

    image, folder = None, None
    with contextlib.suppress(TimonelError):  # the model is served from another folder
        found = workspace_models(workspace).get(model, version)
        image, folder = _held_out_image(found, workspace), found.path
    return curl_example(server, model, image=image or "some_image.png", version=folder)


def _held_out_image(version: ModelVersion, workspace: Workspace) -> str | None:
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
                return from_here(path) if path.is_file() else None
    return None

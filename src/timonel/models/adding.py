"""Publish models that were made elsewhere, after one request to them. Without TensorFlow."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from timonel.errors import ModelError, NotFoundError
from timonel.models.adding_process import KERAS_ENDINGS, AddRequest, Trial
from timonel.models.child import run_child
from timonel.models.inspection import PYTHON_MODEL_FILE, TFLITE_FILE, is_python_model
from timonel.models.repository import ModelRepository
from timonel.models.versions import VERSION_NUMBER, ModelVersion, check_name
from timonel.storage.location import Location
from timonel.storage.remote import fetch

_TIMEOUT_S = 900.0
_FILES = (*KERAS_ENDINGS, ".tflite")
_HINT = (
    f"name a SavedModel's folder, a folder of versions such as 1/saved_model.pb, a file "
    f"({', '.join(_FILES)}), or a folder with {PYTHON_MODEL_FILE}"
)


def add_model(
    repository: ModelRepository,
    name: str,
    source: str | os.PathLike[str],
    progress: Callable[[str], None] = lambda _: None,
) -> tuple[ModelVersion, str | None]:
    """Publish a model as the next version of ``name``.

    A separate process first sends one request to it, with an example of zeros and empty texts. A
    Keras file is exported. Python models are not run.

    Args:
        name: The model's name.
        source: A SavedModel's folder, a folder of versions, of which the newest one is taken, a
            ``.keras``, ``.h5`` or ``.tflite`` file, or a folder with a Python model; or its URI in
            a bucket.

    Returns:
        The version, and why the request was not sent or did not succeed; None if it did.
    """
    check_name(name)
    place = _newest(Location(source))
    with tempfile.TemporaryDirectory(prefix="timonel-add-") as scratch:
        folder = _local_folder(place, Path(scratch), progress)
        if is_python_model(folder):
            return repository.add(name, folder), None
        target = Path(scratch) / "export" if place.ending in KERAS_ENDINGS else None
        file = folder / place.name if target is not None else folder
        progress("loading the model and sending it one example of zeros and empty texts")
        trial = _try(AddRequest(source=file, name=str(place), target=target), Path(scratch))
        progress(f"publishing {name}")
        if target is None:
            return repository.add(name, folder), trial.failure
        origin = {"uri": place.uri, "digest": place.digest(), "name": place.name}
        return repository.publish(name, target, {"source": [origin]}), trial.failure


def _newest(place: Location) -> Location:
    """Return the newest version in a folder of numbered ones, else the place itself."""
    if not place.exists():
        raise NotFoundError(f"nothing is at {place}", hint=_HINT)
    if place.is_file():
        if place.ending not in _FILES:
            raise ModelError(f"{place} is not the file of a model", hint=_HINT)
        return place
    folders, files = place.children
    if {"saved_model.pb", TFLITE_FILE, PYTHON_MODEL_FILE} & set(files):
        return place
    numbers = [each for each in folders if VERSION_NUMBER.fullmatch(each)]
    if not numbers:
        raise ModelError(f"{place} holds no model", hint=_HINT)
    return place / max(numbers, key=int)


def _local_folder(place: Location, scratch: Path, progress: Callable[[str], None]) -> Path:
    """Return a local folder with the model: the user's own, or a copy."""
    folder = scratch / "model"
    if place.is_file():
        folder.mkdir()
        shutil.copyfile(
            place.local, folder / (TFLITE_FILE if place.ending == ".tflite" else place.name)
        )
    elif place.is_local:
        return place.path
    else:
        progress(f"downloading {place}")
        fetch(place.uri, folder)
    return folder


def _try(request: AddRequest, scratch: Path) -> Trial:
    try:
        return run_child(
            "timonel.models.adding_process",
            request,
            Trial,
            task="request",
            folder=scratch,
            log=scratch / "log",
            timeout_s=_TIMEOUT_S,
        )
    except TimeoutError as error:
        raise ModelError(
            f"{request.name} did not answer one request in {_TIMEOUT_S:.0f} s"
        ) from error

"""Measured choice of a runtime for a version, stored in the version.

If each replica measured for itself, replicas on different machines could choose differently, and
their answers would differ in the last digits. So one stored measurement decides for all of them.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import Field

from timonel.errors import NotFoundError, TimonelError
from timonel.models.schema import Stored
from timonel.storage import digest_file
from timonel.storage.documents import document

_LOG = logging.getLogger(__name__)
KIND = "runtime-choice"
EVIDENCE = Path("assets.extra", "timonel-runtime.json")
CONVERTED = Path("assets.extra", "timonel-runtime.tflite")
"""Flatbuffer converted from the version's SavedModel."""

FROZEN = Path("assets.extra", "timonel-frozen")
"""SavedModel with constants in place of the version's variables."""

Choice = Literal["tensorflow", "frozen", "litert"]
"""Runtimes for a version; ``frozen`` is TensorFlow on the SavedModel without variables."""


class Measurement(Stored):
    """Time of a runtime for one batch size."""

    runtime: Choice = Field(description="What computed.")
    signature: str = Field(description="The signature.")
    batch: int = Field(description="Rows in a request.")
    callers: int = Field(description="Requests at the same time.")
    milliseconds: float = Field(description="Time a request, the median of rounds.")


class Evidence(Stored):
    """Content of ``assets.extra/timonel-runtime.json``."""

    runtime: Choice = Field(description="What computes the version.")
    reason: str = Field(description="Why, in a line for people.")
    created_at: float = Field(default_factory=time.time, description="When, in Unix seconds.")
    saved_model: str = Field(description="What tells the SavedModel from another one.")
    converted: str | None = Field(
        default=None,
        description="The digest of the flatbuffer or frozen graph that computes the version.",
    )
    samples: int = Field(default=0, description="Requests whose answers were compared.")
    difference: float | None = Field(
        default=None, description="The largest difference of an answer, relative to TensorFlow's."
    )
    measurements: tuple[Measurement, ...] = Field(default=(), description="Times.")
    versions: Mapping[str, str] = Field(default_factory=dict, description="Packages measured.")
    cores: int = Field(default=0, description="Processors of the machine.")

    def as_document(self) -> dict[str, object]:
        """Return the document to write."""
        return document(KIND, self.model_dump(mode="json"))


def read_evidence(version: Path) -> Evidence:
    """Read the evidence in a version's folder.

    Raises:
        NotFoundError: The folder holds no evidence.
        CorruptError: The evidence is broken.
        FormatError: A newer release wrote it.
    """
    return Evidence.read(version / EVIDENCE, KIND)


def chosen(version: Path) -> Choice:
    """Return the runtime for a version from its evidence; TensorFlow without evidence.

    Evidence is valid only for the SavedModel, and the flatbuffer or frozen graph, it was measured
    on.
    """
    try:
        found = read_evidence(version)
    except NotFoundError:
        return "tensorflow"
    except TimonelError as error:
        _LOG.warning("%s is computed by TensorFlow: %s", version, error)
        return "tensorflow"
    if found.runtime == "tensorflow":
        return "tensorflow"
    try:
        made = digest_file(version / made_for(found.runtime))
        same = identity(version) == found.saved_model and made == found.converted
    except OSError as error:
        _LOG.warning("%s is computed by TensorFlow: %s", version, error)
        return "tensorflow"
    if not same:
        _LOG.warning("%s is computed by TensorFlow: it is not what was measured", version)
        return "tensorflow"
    return found.runtime


def identity(version: Path) -> str:
    """Return a SavedModel's identity: its graph's digest, and its variables' sizes."""
    found = hashlib.sha256()
    for name in ("saved_model.pb", "saved_model.pbtxt"):
        if (version / name).is_file():
            found.update((version / name).read_bytes())
    for path in sorted((version / "variables").glob("*")):
        found.update(f"{path.name}\0{path.stat().st_size}\n".encode())
        if path.suffix == ".index":
            # The index holds a checksum of every variable.
            found.update(path.read_bytes())
    return f"sha256:{found.hexdigest()}"


def made_for(choice: Choice) -> Path:
    """Return the file generated for a choice other than ``tensorflow``."""
    return CONVERTED if choice == "litert" else FROZEN / "saved_model.pb"

"""Export folder of a job, as written by `export_live`: its document and held-out predictions.

Held-out predictions are the training pipeline's, kept for the check as one JSON object per line. An
example is an image file or a row; the file records where the raw input is, not a copy. This module
does not use TensorFlow: both the training job and the control side of the check read it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from timonel.errors import CorruptError
from timonel.models.schema import EXPORT_FILE, SAVED_MODEL_DIR, Export, StoredDocument
from timonel.storage import digest_bytes, digest_tree, verify_file, write_text

MAX_EXAMPLES = 256
"""Limit on held-out examples: enough to detect an error of a few per cent, within a second."""


class ReferenceExample(StoredDocument):
    """A held-out example, and the training pipeline's prediction for it."""

    key: str = Field(description="Key of the record: the file's path relative to its source.")
    source: str | Mapping[str, Any] | None = Field(
        default=None, description="Absolute path of the raw file, or the raw row by column."
    )
    digest: str | None = Field(default=None, description="Digest of the raw file, if known.")
    scores: tuple[float, ...] = Field(
        description="Probabilities by class, or the numbers of all outputs, sorted by name."
    )
    label: float | None = Field(default=None, description="Index of the true label, or true value.")

    def read_file(self, data_root: Path | None) -> bytes | None:
        """Return the content of the raw file, or None if it is missing or was changed.

        Args:
            data_root: The current folder of the raw files, if they were moved.
        """
        path = data_root / self.key if data_root else Path(str(self.source or ""))
        if not path.is_file():
            return None
        content = path.read_bytes()
        return content if self.digest in {None, digest_bytes(content)} else None


def read_export(folder: Path) -> Export:
    """Read the document of the export in ``folder``."""
    return Export.read(folder / EXPORT_FILE, "export")


def export_folder_of(path: Path) -> Path:
    """Return the export folder for a run's artifact: the folder, or its SavedModel's."""
    inside = path.name == SAVED_MODEL_DIR and not (path / EXPORT_FILE).is_file()
    return path.parent if inside else path


def saved_model_of(folder: Path) -> Path:
    """Return the SavedModel's folder in the export folder ``folder``."""
    return folder / SAVED_MODEL_DIR


def simulates_integers(saved_model: Path) -> bool:
    """Return whether a model was trained with simulated integers, and still computes with them."""
    return b"FakeQuant" in (saved_model / "saved_model.pb").read_bytes()


def verify_export(folder: Path) -> Export:
    """Read the export in ``folder`` and verify the digest of its files."""
    export = read_export(folder)
    verify_saved_model(saved_model_of(folder), export.digest)
    return export


def verify_saved_model(folder: Path, digest: str, copy: Path | None = None) -> None:
    """Verify the digest of the SavedModel in ``folder``, or of its ``copy``."""
    found = digest_tree(copy or folder)
    if found != digest:
        raise CorruptError(
            f"the SavedModel in {folder} was changed or truncated after the export: expected "
            f"digest {digest}, got {found}",
            hint="train again, then export",
        )


def reference_of(folder: Path, export: Export) -> list[ReferenceExample]:
    """Return the held-out predictions of an export; empty if it has none."""
    if export.reference is None:
        return []
    path = folder / str(export.reference["file"])
    verify_file(path, str(export.reference["digest"]))
    return read_reference(path)


def write_reference(path: Path, examples: Iterable[ReferenceExample]) -> None:
    """Write held-out predictions to ``path`` atomically."""
    lines = (json.dumps(example.model_dump(mode="json", exclude_none=True)) for example in examples)
    write_text(path, "".join(f"{line}\n" for line in lines))


def read_reference(path: Path) -> list[ReferenceExample]:
    """Read the held-out predictions at ``path``."""
    try:
        lines = path.read_text().splitlines()
        return [ReferenceExample.model_validate_json(line) for line in lines]
    except (OSError, UnicodeDecodeError, ValidationError) as error:
        raise CorruptError(
            f"cannot read the held-out predictions in {path}: {str(error).splitlines()[0]}",
            hint="train again, or export without the check (--no-check)",
        ) from error

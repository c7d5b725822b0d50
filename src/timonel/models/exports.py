"""Read and verify a job's export folder, as written by `export_live`."""

from __future__ import annotations

from pathlib import Path

from timonel.errors import CorruptError
from timonel.models.reference import ReferenceExample, read_reference
from timonel.models.schema import EXPORT_FILE, SAVED_MODEL_DIR, Export
from timonel.storage import digest_tree, verify_file


def read_export(folder: Path) -> Export:
    """Read the document of the export in ``folder``.

    Raises:
        NotFoundError: The folder holds no export.
        CorruptError: The document is broken.
        FormatError: A newer release wrote it.
    """
    return Export.read(folder / EXPORT_FILE, "export")


def export_folder_of(path: Path) -> Path:
    """Return the export folder for a run's artifact at ``path``.

    Args:
        path: The export's folder, or the folder of the SavedModel in it.
    """
    inside = path.name == SAVED_MODEL_DIR and not (path / EXPORT_FILE).is_file()
    return path.parent if inside else path


def saved_model_of(folder: Path) -> Path:
    """Return the SavedModel's folder in the export folder ``folder``."""
    return folder / SAVED_MODEL_DIR


def verify_export(folder: Path) -> Export:
    """Read the export in ``folder`` and verify the digest of its files.

    Raises:
        NotFoundError: The folder holds no export.
        CorruptError: A file was changed or truncated since the export.
    """
    export = read_export(folder)
    found = digest_tree(saved_model_of(folder))
    if found != export.digest:
        raise CorruptError(
            f"expected the SavedModel in {folder} to have digest {export.digest}, found {found}",
            hint="it was changed or cut off after the export; train again, then export",
        )
    return export


def reference_of(folder: Path, export: Export) -> list[ReferenceExample]:
    """Return the held-out predictions of an export; empty if it has none.

    Raises:
        CorruptError: They were changed or truncated.
    """
    if export.reference is None:
        return []
    path = folder / str(export.reference["file"])
    verify_file(path, str(export.reference["digest"]))
    return read_reference(path)

"""Documents of every format that this release reads."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from timonel.errors import CorruptError, FormatError
from timonel.models.exports import reference_of, verify_export
from timonel.models.runtime_choice import Evidence
from timonel.models.schema import (
    EXPORT_FILE,
    VERSION_FILE,
    CheckResult,
    Export,
    StoredDocument,
    VersionDocument,
)
from timonel.models.versions import open_version

from .conftest import FORMAT_1


def test_an_export_of_format_1_is_read_whole() -> None:
    export = verify_export(FORMAT_1 / "export")
    assert export.labels == ("no", "yes")
    assert export.signatures["serving_default"].outputs["scores"].shape == (-1, 2)
    assert (export.meaning.task, export.meaning.output) == ("classification", "probabilities")
    assert export.preparation.transforms is not None
    assert export.preparation.transforms["kind"] == "image"
    assert export.model.parameters == 34
    examples = reference_of(FORMAT_1 / "export", export)
    assert len(examples) == 12
    assert sum(examples[0].scores) == pytest.approx(1.0)


def test_a_version_of_format_1_is_read_whole() -> None:
    version = open_version(FORMAT_1 / "model-version")
    assert version is not None
    assert version.document is not None
    assert (version.document.name, version.document.version) == ("tiny", 1)
    assert version.run_id == "train-20261120-181530-7f3a"
    assert version.check is not None
    assert (version.check.status, version.check.accuracy) == ("passed", 0.5)
    assert version.document.export == verify_export(FORMAT_1 / "export")


def test_a_newer_format_is_refused(export_folder: Path) -> None:
    path = export_folder / EXPORT_FILE
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 99}))
    with pytest.raises(FormatError, match="upgrade timonel"):
        Export.read(path, "export")


def test_unknown_keys_are_passed_over(export_folder: Path) -> None:
    path = export_folder / EXPORT_FILE
    before = Export.read(path, "export")
    path.write_text(json.dumps({**json.loads(path.read_text()), "later": 1}))
    assert Export.read(path, "export") == before


def test_a_wrong_document_is_one_line(export_folder: Path) -> None:
    path = export_folder / EXPORT_FILE
    path.write_text(json.dumps({**json.loads(path.read_text()), "digest": None}))
    with pytest.raises(CorruptError, match="broken: digest") as raised:
        Export.read(path, "export")
    assert "\n" not in str(raised.value)


def test_another_kind_of_document_is_refused() -> None:
    with pytest.raises(CorruptError, match="is not a model-version document"):
        VersionDocument.read(FORMAT_1 / "export" / EXPORT_FILE, "model-version")
    assert (FORMAT_1 / "model-version" / VERSION_FILE).is_file()


@pytest.mark.parametrize("document", [VersionDocument, Evidence])
def test_what_is_no_small_file_is_not_read(tmp_path: Path, document: type[StoredDocument]) -> None:
    """A version from elsewhere could block whatever reads it, or fill the memory."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to("/dev/zero")
    for name in ("pipe", "device"):
        with pytest.raises(CorruptError, match=f"{name} is no regular file"):
            document.read(tmp_path / name, "model-version")
    with (tmp_path / "large").open("wb") as file:
        file.truncate(2**24 + 1)
    with pytest.raises(CorruptError, match="large has more than 16 MiB"):
        document.read(tmp_path / "large", "model-version")


def test_an_infinite_difference_survives_json() -> None:
    result = CheckResult(status="failed", message="x", max_abs_diff=float("inf"))
    assert CheckResult.model_validate_json(result.model_dump_json()) == result

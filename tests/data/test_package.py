from __future__ import annotations

import subprocess
import sys

import pytest

import timonel.data


def test_public_names() -> None:
    assert timonel.data.__all__ == [
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
    assert not hasattr(timonel.data, "no_such_name")


@pytest.mark.process
def test_converting_imports_no_tensorflow() -> None:
    program = (
        "import sys, timonel.data, timonel.data.load_registry, timonel.data.sources as sources;"
        "sources.installed_sources();"
        "print([name for name in ('tensorflow', 'keras') if name in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"

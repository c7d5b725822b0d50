from __future__ import annotations

import base64
import csv
import hashlib
import importlib.metadata
import io
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from timonel import __version__
from timonel.data.runners.worker_wheel import CONVERSION, all_packages, build_wheel

INFO = f"timonel-{__version__}.dist-info"


@pytest.mark.process
def test_the_wheel_is_importable_and_reproducible(tmp_path: Path) -> None:
    path = build_wheel(tmp_path, CONVERSION)
    content = path.read_bytes()
    path.unlink()
    assert build_wheel(tmp_path, CONVERSION).read_bytes() == content
    program = "import timonel.data.runners.portable as found; print(found.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(path)!r}); {program}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith(str(path))


def test_the_record_lists_all_files(tmp_path: Path) -> None:
    with zipfile.ZipFile(build_wheel(tmp_path, ())) as wheel:
        contents = {name: wheel.read(name) for name in wheel.namelist()}
    listed = csv.reader(io.StringIO(contents.pop(f"{INFO}/RECORD").decode()))
    digests = {name: digest for name, digest, size in listed if size}
    for name, content in contents.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
        assert digests.pop(name) == f"sha256={digest}"
    assert not digests
    assert not [name for name in contents if name.endswith((".so", ".pyc"))]


def test_requirements_are_pinned_to_what_is_installed_here(tmp_path: Path) -> None:
    with zipfile.ZipFile(build_wheel(tmp_path, CONVERSION)) as wheel:
        metadata = wheel.read(f"{INFO}/METADATA").decode()
        points = wheel.read(f"{INFO}/entry_points.txt").decode()
    assert f"Requires-Dist: pillow=={importlib.metadata.version('pillow')}\n" in metadata
    assert "tensorflow" not in metadata
    assert "images = timonel.data.sources.images:ImageFolderSource" in points
    assert {*CONVERSION, "tensorflow", "ai-edge-litert"} <= set(all_packages())

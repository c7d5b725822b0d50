"""Build a wheel of the installed package, which Apache Beam installs on its workers.

It is made from the files that are imported here, also from a source tree, without a compiler or a
network. The same files and versions give the same bytes, so stagers that compare digests upload it
once.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib.metadata
import io
import re
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from timonel._version import __version__
from timonel.storage.source_files import own_files

PACKAGE = "timonel"

CONVERSION = ("fsspec", "google-crc32c", "numpy", "orjson", "pillow", "pyarrow", "pydantic")
"""Packages that the writers of shards import."""

FILE_SYSTEMS = ("aiohttp", "gcsfs", "s3fs")
"""Packages for buckets and HTTP, which workers get if the client has them."""

# Compiled parts are for one platform, and have substitutes; .gz files are for browsers.
_LEFT_OUT = {".c", ".gz", ".so"}


def all_packages() -> tuple[str, ...]:
    """Return the names of the packages that this one always requires."""
    required = importlib.metadata.requires(PACKAGE) or ()
    return tuple(re.split(r"[^\w.-]", line)[0] for line in required if "extra ==" not in line)


def build_wheel(folder: Path, packages: Iterable[str]) -> Path:
    """Build the wheel in a folder; return its path.

    It requires packages in the versions that are installed here: others might write other bytes.
    """
    files = {
        name: path.read_bytes()
        for name, path in own_files().items()
        if path.suffix not in _LEFT_OUT
    }
    info = f"{PACKAGE}-{__version__}.dist-info"
    for name, content in _metadata(packages).items():
        files[f"{info}/{name}"] = content.encode()
    files[f"{info}/RECORD"] = _record(files, f"{info}/RECORD").encode()
    path = folder / f"{PACKAGE}-{__version__}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, body in files.items():
            member = zipfile.ZipInfo(name)  # of 1980
            member.compress_type = zipfile.ZIP_DEFLATED
            member.external_attr = 0o100644 << 16
            archive.writestr(member, body)
    return path


def _metadata(packages: Iterable[str]) -> dict[str, str]:
    lines = ["Metadata-Version: 2.1", f"Name: {PACKAGE}", f"Version: {__version__}"]
    lines += [f"Requires-Dist: {pin}" for pin in _pins((*packages, *FILE_SYSTEMS))]
    points = importlib.metadata.distribution(PACKAGE).read_text("entry_points.txt") or ""
    return {
        "METADATA": "\n".join(lines) + "\n",
        "WHEEL": "Wheel-Version: 1.0\nGenerator: timonel\nRoot-Is-Purelib: true\n"
        "Tag: py3-none-any\n",
        "entry_points.txt": points,
    }


def _pins(packages: Iterable[str]) -> Iterator[str]:
    for name in sorted(packages):
        try:
            yield f"{name}=={importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            continue


def _record(files: dict[str, bytes], itself: str) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        writer.writerow([name, f"sha256={digest}", len(content)])
    writer.writerow([itself, "", ""])
    return text.getvalue()

"""Layers of Python packages: those of requirements, of this environment, and timonel's own.

All are staged in a folder first and compiled to bytecode: without it, an import of TensorFlow takes
a minute in each container.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import Distribution
from pathlib import Path

from timonel._version import __version__
from timonel.containers.credentials import without_user
from timonel.containers.own_requirements import OwnRequirements
from timonel.errors import InputError, SpecError
from timonel.processes.cores import usable_cores
from timonel.storage.digests import digest_lines
from timonel.storage.source_files import own_files

_OWN = "timonel"
_CHUNK_FILES = 400
_LOCAL = frozenset({"__pycache__", "RECORD", "INSTALLER", "REQUESTED", "direct_url.json"})
"""Files of a package that depend on how and where it was installed."""
# glibc 2.31: Debian 11, Ubuntu 20.04, and newer. Envoy's wheels need it.
_PLATFORMS = {
    "linux/amd64": "x86_64-manylinux_2_31",
    "linux/arm64": "aarch64-manylinux_2_31",
}


def environment_digest() -> str:
    """Return a digest of the packages of this environment, without timonel's."""
    return digest_lines(
        f"{each.metadata['Name']} {each.version} {each.read_text('RECORD') or ''}"
        for each in _distributions()
    )


def stage_environment(folder: Path) -> None:
    """Copy the packages of this environment, without timonel's, into a folder.

    Those of `left_out_packages` are left out.
    """
    for each in _distributions():
        if _why_left_out(each) is not None:
            continue
        for file in each.files or ():
            if file.parts[0] != ".." and not _LOCAL & set(file.parts):
                _copy(Path(str(each.locate_file(file))), folder / file)


def left_out_packages() -> dict[str, str]:
    """Return the packages of this environment that an image cannot contain, with the reasons."""
    found = ((each.metadata["Name"], _why_left_out(each)) for each in _distributions())
    return {name: reason for name, reason in found if reason is not None}


def _why_left_out(package: Distribution) -> str | None:
    if "editable" in (package.read_text("direct_url.json") or ""):
        return "installed in editable mode"
    # Such as packages of the operating system.
    return None if package.files else "installed without a list of files (RECORD)"


def stage_requirements(
    requirements: Path,
    own: OwnRequirements | None,
    folder: Path,
    *,
    python_version: str,
    platform: str,
    refresh: bool = False,
) -> None:
    """Install the packages of a requirements or lock file into a folder.

    Args:
        requirements: The file. A lock with hashes is installed as it is.
        python_version: Version of Python in the image, such as ``3.11``.
        platform: Platform of the image, such as ``linux/amd64``.
        refresh: Whether uv checks all that it has cached.
    """
    if platform not in _PLATFORMS:
        raise SpecError(f"expected the platform {' or '.join(_PLATFORMS)}, got {platform!r}")
    command = [
        *(_uv(), "pip", "install", "--quiet", "--target", str(folder)),
        *("--python-version", python_version, "--python-platform", _PLATFORMS[platform]),
        *("--only-binary", ":all:", "--requirements", str(requirements)),
        *(("--refresh",) if refresh else ()),
    ]
    with tempfile.TemporaryDirectory() as scratch:
        if own is not None:
            for option, content in (("requirements", own.added), ("overrides", own.overrides)):
                file = Path(scratch, f"timonel-{option}.txt")
                file.write_text("\n".join(content))
                command += [f"--{option}", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["no output"]
        hint = f"try it with 'uv pip compile --only-binary :all: {requirements}'"
        if own is not None:  # which uv would not find
            hint = "check its names, and that its versions fit timonel's own requirements"
        reason = without_user(" ".join(line.strip() for line in lines[-3:]))
        raise InputError(f"cannot install {requirements}: {reason}", hint=hint)
    for path in folder.glob("bin/*"):
        if _is_script(path):  # its first line names the Python of this machine
            path.unlink()
    for path in [*folder.glob("*.dist-info/*"), *folder.glob(".lock")]:
        if path.name in {*_LOCAL, ".lock", "uv_cache.json"}:
            path.unlink()


def _is_script(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"#!"


def stage_timonel(folder: Path) -> None:
    """Copy timonel, as it is imported here, into a folder."""
    for name, path in own_files().items():
        _copy(path, folder / name)
    distribution = importlib.metadata.distribution(_OWN)
    target = folder / f"{_OWN}-{__version__}.dist-info"
    for name in ("METADATA", "entry_points.txt"):
        text = distribution.read_text(name)
        if text is not None:
            target.mkdir(parents=True, exist_ok=True)
            (target / name).write_text(text)


def compile_bytecode(folder: Path, place: str) -> None:
    """Compile the modules below a folder, so that the same sources give the same bytes.

    Args:
        place: Where it is in the image, for tracebacks.
    """
    names = sorted(str(path) for path in folder.rglob("*.py"))
    chunks = [names[at : at + _CHUNK_FILES] for at in range(0, len(names), _CHUNK_FILES)]
    with ThreadPoolExecutor(max(1, int(usable_cores()))) as pool:
        list(pool.map(lambda chunk: _compile(chunk, folder, place), chunks))


def _compile(names: Sequence[str], folder: Path, place: str) -> None:
    # In a new process each, as marshal writes what is shared with other modules differently. Some
    # packages have files that are no Python of this version, so the exit code says nothing.
    subprocess.run(
        [
            *(sys.executable, "-s", "-P", "-m", "compileall", "-q", "-i", "-"),
            *("--invalidation-mode", "unchecked-hash", "-s", str(folder), "-p", f"/{place}"),
        ],
        input="\n".join(names),
        text=True,
        capture_output=True,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        check=False,
    )


def _distributions() -> Iterator[Distribution]:
    """Yield the distributions of this environment without timonel, sorted by name."""
    found: dict[str, Distribution] = {}
    for each in importlib.metadata.distributions():
        found.setdefault(each.metadata["Name"].lower(), each)  # the first one is imported
    found.pop(_OWN, None)
    yield from (found[name] for name in sorted(found))


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:
        try:
            shutil.copy(source, target)
        except OSError as error:
            raise InputError(f"cannot copy {source}: {error.strerror or error}") from error


def _uv() -> str:
    beside = Path(sys.executable).with_name("uv")
    found = str(beside) if beside.is_file() else shutil.which("uv")
    if found is None:
        raise InputError("uv is not installed", hint="pip install uv")
    return found

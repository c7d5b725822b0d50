"""Base image made of this machine's Python, for where no registry has one.

The image has the interpreter with its standard library below ``/usr/local``, the shared libraries
that it needs, and the C and C++ libraries that wheels expect. It has no shell.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from timonel.containers.layers import LayerFile, file_at
from timonel.errors import SpecError

VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
ENVIRONMENT = (
    "PATH=/usr/local/bin:/usr/bin:/bin",
    "LANG=C.UTF-8",
    # Without the cache of ldconfig, the loader looks here and in the C library's own folders.
    "LD_LIBRARY_PATH=/usr/local/lib",
    f"PYTHON_VERSION={platform.python_version()}",
)
_LEFT_OUT = frozenset({"__pycache__", "site-packages", "test", "tests", "idlelib", "turtledemo"})
_USUAL = (
    *("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libutil.so.1"),
    *("libresolv.so.2", "libnss_dns.so.2", "libnss_files.so.2", "libstdc++.so.6", "libgcc_s.so.1"),
)
_CERTIFICATES = "etc/ssl/certs/ca-certificates.crt"
_TEXTS = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nnonroot:x:65532:65532:nonroot:/tmp:/bin/sh\n",
    "etc/group": "root:x:0:\nnonroot:x:65532:\n",
    "etc/nsswitch.conf": "hosts: files dns\n",
}


def site_packages() -> str:
    """Return where the base's Python looks for packages; Debian's differs from others."""
    code = "import site; print(site.getsitepackages(['/usr/local'])[-1])"
    python = Path(sys.base_prefix, f"bin/python{VERSION}")
    found = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=True)
    return found.stdout.strip()


def base_files() -> Iterator[LayerFile]:
    """Yield the files of the base.

    Raises:
        SpecError: This machine does not run Linux with glibc.
    """
    if platform.libc_ver()[0] != "glibc":
        raise SpecError(
            "the base 'self' needs Linux with glibc",
            hint="name an image with --base, or build on a Linux machine",
        )
    prefix = Path(sys.base_prefix)
    libraries = {name: path for name, path in _system_libraries().items() if name in _USUAL}
    for path, name in _python(prefix):
        yield file_at(path, name)
        if ".so" in path.name or name.endswith(f"bin/python{VERSION}"):
            libraries |= _libraries_of(path)
    for name, path in libraries.items():
        is_own = path.resolve().is_relative_to(prefix.resolve())
        place = f"usr/local/lib/{name}" if is_own else str(path).lstrip("/")
        yield LayerFile(place, path.resolve(), mode=0o755)
    yield from _loader(prefix / f"bin/python{VERSION}")
    for name in ("python3", "python"):
        yield LayerFile(f"usr/local/bin/{name}", link=f"python{VERSION}")
    for name, text in _TEXTS.items():
        yield LayerFile(name, text.encode())
    if Path("/", _CERTIFICATES).is_file():
        yield LayerFile(_CERTIFICATES, Path("/", _CERTIFICATES).resolve())
    yield LayerFile("tmp/", mode=0o1777)


def _python(prefix: Path) -> Iterator[tuple[Path, str]]:
    """Yield the interpreter and its standard library."""
    yield prefix / f"bin/python{VERSION}", f"usr/local/bin/python{VERSION}"
    standard = Path(sysconfig.get_path("stdlib", vars={"base": str(prefix)}))
    for parent, folders, names in os.walk(standard):
        folders[:] = [each for each in folders if each not in _LEFT_OUT and "config-" not in each]
        for name in names:
            path = Path(parent, name)
            if path.suffix != ".a":
                inside = path.relative_to(standard).as_posix()
                yield path, f"usr/local/lib/python{VERSION}/{inside}"


def _libraries_of(path: Path) -> dict[str, Path]:
    """Return the shared libraries that a file needs, and those that they need, by name."""
    found = (line.split() for line in _ldd(path) if " => /" in line)
    return {words[0]: Path(words[2]) for words in found}


def _system_libraries() -> dict[str, Path]:
    """Return the shared libraries of the system by name, as the loader finds them."""
    listed = subprocess.run(
        ["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=False
    ).stdout
    found: dict[str, Path] = {}
    for line in listed.splitlines()[1:]:
        name, _, path = line.strip().partition(" => ")
        if "x86-64" in name or "AArch64" in name:
            found.setdefault(name.split()[0], Path(path))
    return found


def _loader(python: Path) -> Iterator[LayerFile]:
    """Yield the program loader that executables name."""
    for line in _ldd(python):
        word = line.split()[0]
        if word.startswith("/"):
            yield LayerFile(word.lstrip("/"), Path(word).resolve(), mode=0o755)


def _ldd(path: Path) -> list[str]:
    listed = subprocess.run(
        ["/usr/bin/ldd", str(path)], capture_output=True, text=True, check=False
    )
    return [line for line in listed.stdout.splitlines() if line.strip()]

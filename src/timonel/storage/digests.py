"""Content digests of files, bytes and folders: ``sha256:<hex>``.

A folder's digest is that of its sorted list of ``<digest> <size> <relative path>`` lines, so it
depends on names and contents and on nothing else (no times, owners or order).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

from timonel.errors import CorruptError
from timonel.storage.atomic import ASIDE_PREFIX

_BLOCK_BYTES = 1 << 20
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def is_digest(value: object) -> bool:
    """Return whether a value is the text of a digest."""
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None


def digest_bytes(content: bytes) -> str:
    """Return the digest of ``content``."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


_QUICK_BYTES = 64 << 20


def quick_digest(path: Path) -> str | None:
    """Return the digest of a file; None for a folder, and for a file that takes long."""
    if path.is_file() and path.stat().st_size <= _QUICK_BYTES:
        return digest_file(path)
    return None


def digest_file(path: Path) -> str:
    """Return the digest of the file at ``path``."""
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def digest_lines(lines: Iterable[str]) -> str:
    """Return the digest of ``lines``, each ended by a line feed."""
    sha = hashlib.sha256()
    for line in lines:
        # Names that are not valid UTF-8 still have bytes.
        sha.update(line.encode(errors="surrogateescape"))
        sha.update(b"\n")
    return f"sha256:{sha.hexdigest()}"


def digest_tree(root: Path, *, exclude: Iterable[str] = ()) -> str:
    """Return the digest of all files below ``root``.

    Args:
        root: The folder.
        exclude: Relative paths (POSIX) to leave out, such as the file that will hold the digest.
    """
    left_out = set(exclude)
    named = {path.relative_to(root).as_posix(): path for path in root.rglob("*") if path.is_file()}
    return digest_lines(
        f"{digest_file(path)} {path.stat().st_size} {_one_line(name)}"
        for name, path in sorted(named.items())
        if name not in left_out and not _is_aside(name)
    )


def verify_file(path: Path, expected: str) -> None:
    """Check that the file at ``path`` has the digest ``expected``.

    Raises:
        CorruptError: The digest differs, or the file is missing.
    """
    found = digest_file(path) if path.is_file() else None
    if found != expected:
        problem = "is missing" if found is None else f"has digest {found}, not {expected}"
        raise CorruptError(
            f"{path} {problem}",
            hint="the file was changed or truncated: create it again from its source",
        )


def _is_aside(name: str) -> bool:
    return any(part.startswith(ASIDE_PREFIX) for part in name.split("/"))


def _one_line(name: str) -> str:
    """Escape a name to one line, unambiguously."""
    return name.replace("\\", "\\\\").replace("\n", "\\n")

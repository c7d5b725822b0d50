"""Archives of a program's files, for tasks that do not see the submitting machine's.

The same files make the same archive, byte for byte, so that archives can be named by digest.
"""

from __future__ import annotations

import gzip
import io
import tarfile
import tempfile
import zlib
from pathlib import Path

from timonel.errors import CorruptError, SpecError
from timonel.storage.atomic import unwritable
from timonel.storage.remote import fetch
from timonel.storage.source_files import source_files
from timonel.storage.uris import normalise

ARCHIVE_SUFFIX = ".tar.gz"
_LARGEST_BYTES = 100 << 20


def is_archive(source: str) -> bool:
    """Tell whether a source is an archive, and not a folder."""
    return source.endswith(ARCHIVE_SUFFIX)


def pack(folder: Path) -> bytes:
    """Return an archive of a folder's files: those that git does not ignore, if it is git's."""
    names = source_files(folder)
    total = sum((folder / name).stat().st_size for name in names)
    if total > _LARGEST_BYTES:
        largest = max(names, key=lambda name: (folder / name).stat().st_size)
        raise SpecError(
            f"the files of {folder} have {total >> 20} MiB, more than a program's source may have "
            f"({_LARGEST_BYTES >> 20} MiB); the largest is {largest}",
            hint="move data elsewhere, or name it in .gitignore",
        )
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name in names:
            found = archive.gettarinfo(folder / name, name)
            found.uid = found.gid = found.mtime = 0
            found.uname = found.gname = ""
            found.mode = 0o755 if found.mode & 0o100 else 0o644
            with (folder / name).open("rb") as file:
                archive.addfile(found, file)
    return gzip.compress(packed.getvalue(), mtime=0)


def unpack(source: str, folder: Path) -> None:
    """Fetch an archive, and unpack it into a new folder."""
    with tempfile.TemporaryDirectory(prefix="timonel-source-") as scratch:
        archive = Path(scratch, "source")
        fetch(source, archive)
        try:
            with tarfile.open(archive, "r:gz") as files:
                files.extractall(folder, filter="data")
        except (tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise CorruptError(
                f"the archive {normalise(source)} is damaged: {error}", hint="submit the job again"
            ) from error
        except OSError as error:
            raise unwritable(folder, error) from error
